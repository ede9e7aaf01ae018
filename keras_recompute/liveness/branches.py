"""How often a compiled program branches: on a GPU the host decides, and waits for the device each
time.

It reads XLA's messages and imports nothing for them, as ``xla_schedule`` does.
"""

from __future__ import annotations

import json
from typing import Any


def count_branches_taken(module: Any) -> int:
    """Return how many branches a run of the program takes: those in a loop once for each of its
    turns that are known.
    """
    computations = {computation.id: computation for computation in module.computations}

    def within(number: int, seen: frozenset[int]) -> int:
        total = 0
        for instruction in computations[number].instructions if number not in seen else ():
            called = sum(within(c, seen | {number}) for c in instruction.called_computation_ids)
            turns = trip_count(instruction) if instruction.opcode == "while" else 1
            total += turns * called + (instruction.opcode == "conditional")
        return total

    return within(module.entry_computation_id, frozenset())


def trip_count(loop: Any) -> int:
    """Return how often a loop turns, where the compiler found out, else 1."""
    try:
        return max(1, int(json.loads(loop.backend_config)["known_trip_count"]["n"]))
    except (ValueError, LookupError, TypeError):
        return 1
