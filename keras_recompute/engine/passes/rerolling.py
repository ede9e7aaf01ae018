"""Loop rerolling: the section behind the last checkpoint runs in the loop of the equal ones before it.

For XLA on a TPU. That section needs no replay, so it stands behind the loop, as a peeled turn does, with loops over time of its
own in both directions. A TPU's compiler holds a table of pointers for each loop and for each kernel of several results, all of
them side by side, and copies weights anew for the loops behind. In the loop the section is replayed with the others, one replay
more; so only among many.

What it gains: benchmarks/notes/devices.md.
"""

from __future__ import annotations

from .thresholds import REROLLED_SECTIONS


def reroll_last_section(sections: int) -> bool | None:
    """Return True where a loop of so many equal sections, the one behind the last checkpoint among them, is long enough."""
    return True if sections >= REROLLED_SECTIONS else None
