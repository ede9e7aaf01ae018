"""The number of branches that a compiled program takes in one run.

On a GPU the host decides each branch and waits for the device. Reads XLA's messages without
importing their classes, as ``xla_schedule`` does.
"""

from __future__ import annotations

import json
from typing import Any


def count_branches_taken(module: Any) -> int:
    """Return the number of branches of one run, with those in a loop times its known trip count."""
    computations = {computation.id: computation for computation in module.computations}

    def branches_of(number: int, seen: frozenset[int]) -> int:
        # A damaged program may have computations that call each other in a circle: each counts
        # once.
        total = 0
        for instruction in computations[number].instructions if number not in seen else ():
            called = sum(
                branches_of(c, seen | {number}) for c in instruction.called_computation_ids
            )
            turns = trip_count(instruction) if instruction.opcode == "while" else 1
            total += turns * called + (instruction.opcode == "conditional")
        return total

    return branches_of(module.entry_computation_id, frozenset())


def trip_count(loop: Any) -> int:
    """Return the trip count of a loop, if the compiler knows it, else 1."""
    try:
        return max(1, int(json.loads(loop.backend_config)["known_trip_count"]["n"]))
    except (ValueError, LookupError, TypeError):
        return 1
