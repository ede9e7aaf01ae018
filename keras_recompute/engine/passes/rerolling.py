"""Loop rerolling: the section after the last checkpoint runs in the loop of the equal ones.

For XLA on a TPU. That section needs no replay, so it comes after the loop, like a peeled iteration,
with loops over time of its own in both directions. A TPU's compiler holds a table of pointers for
each loop and for each kernel of several results, all side by side, and copies weights again for the
loops after it. In the loop the section is replayed with the others. That costs one more replay, so
it is done only among many.

What it gains: benchmarks/notes/devices.md.
"""

from __future__ import annotations

from .thresholds import REROLLED_SECTIONS


def reroll_last_section(sections: int) -> bool | None:
    """Return True where a loop of ``sections`` equal sections is long enough, else None.

    The section after the last checkpoint is counted.
    """
    return True if sections >= REROLLED_SECTIONS else None
