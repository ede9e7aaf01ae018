"""Plans of the example: ways to divide its sequence into sections, fastest first.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Sequence

from keras_recompute.keras_backend import FEATURES, current_backend
from keras_recompute.planning import section_lengths
from keras_recompute.planning.nested_sections import equal_groups

from .options import Options

# More levels gain nothing, and more sections take minutes to build.
MOST_LEVELS, MOST_SECTIONS = 3, 1024


@dataclass(frozen=True)
class SequencePlan:
    """A plan of the example: its checkpoints, its levels of loops, and whether it recomputes."""

    checkpoints: int
    levels: int = 1
    recompute: bool = True

    def __str__(self) -> str:
        counted = f"{self.checkpoints} checkpoint{'s' if self.checkpoints != 1 else ''}"
        if not self.recompute:
            return f"{counted}, no recomputation" if self.checkpoints else "no recomputation"
        return counted + (f" in {self.levels} levels" if self.levels > 1 else "")

    def why(self, steps: int) -> str:
        """Return what the plan does with ``steps`` timesteps, as text."""
        if not self.recompute:
            return "every activation is kept and every step runs once"
        sections = []
        for length, loops in self.loops(steps).items():
            sections.append(f"{' groups of '.join(map(str, loops))} sections of {length} steps")
        return f"{' and '.join(sections)}; every step runs forward {self.levels + 1} times"

    def counts(self, steps: int) -> Counter[int]:
        """Return the number of sections of each length, the longest first."""
        return Counter(sorted(section_lengths(steps, self.checkpoints + 1), reverse=True))

    def loops(self, steps: int) -> dict[int, Sequence[int]]:
        """Return for each length of sections the numbers of groups in which their loops nest."""
        counts = self.counts(steps).items()
        return {length: equal_groups(count, self.levels) for length, count in counts}

    def warnings(self, steps: int) -> list[str]:
        """Return a line for each loss of this plan because numbers do not divide."""
        counts, found = self.counts(steps), []
        if len(counts) > 1:
            (long, many), (short, few) = counts.items()
            found.append(
                f"{steps} steps can't be evenly divided into {many + few} sections: {many} have "
                f"{long} steps and {few} have {short}. Sections of two lengths are two "
                "outlined programs, which makes a larger program"
            )
        for length, loops in self.loops(steps).items():
            count = counts[length]
            if self.recompute and count > 1 and len(loops) < self.levels:
                such = f"{4**self.levels - 1}"
                if 4**self.levels > steps:
                    such += f" with a longer sequence, or {2**self.levels - 1} with this one"
                reason = "a prime number" if len(loops) == 1 else " x ".join(map(str, loops))
                found.append(
                    f"{count} sections of {length} steps can't be grouped in {self.levels} levels: "
                    f"{count} is {reason}, so they form {len(loops)}. Choose checkpoints so that "
                    f"their number plus one is a product of {self.levels} numbers, such as {such}"
                )
        return found


def sections_of(steps: int, checkpoints: int) -> list[tuple[int, int]]:
    """Return (begin, end) of each section, equal lengths side by side, to share a program."""
    lengths = sorted(section_lengths(steps, checkpoints + 1), reverse=True)
    ends = list(itertools.accumulate(lengths))
    return list(zip([0, *ends], ends))


def named_plans(options: Options) -> list[SequencePlan]:
    """Return the plans that the command line names: one, those of a sweep, or none."""
    if options.sweep is not None:
        return [
            SequencePlan(0, recompute=False),
            *(SequencePlan(checkpoints, options.levels or 1) for checkpoints in options.sweep),
        ]
    if options.checkpoints is None:
        return []
    return [SequencePlan(options.checkpoints, options.levels or 1, not options.no_recompute)]


def plans_for(steps: int, *, levels: int | None = None) -> list[SequencePlan]:
    """Return the plans to choose from for ``steps`` timesteps, fastest first.

    With ``levels`` given, those alone. The plan without recomputation is fastest; each level runs
    every step forward once more; and fewer sections have larger matrix products. Sections are
    equal, or of two lengths if no divisor of ``steps`` is within a factor of two.
    """
    most = min(steps, MOST_SECTIONS)
    # Equal sections share one outlined program.
    divisors = [n for n in range(2, most + 1) if steps % n == 0]
    powers = [2**n for n in range(1, most.bit_length())]
    numbers = set(divisors)
    for power in powers:
        # Sections of two lengths are slower, so they are an option only where no divisor is near.
        if not any(power <= divisor < 2 * power for divisor in divisors):
            numbers.add(power)
    found = [] if levels and levels > 1 else [SequencePlan(0, recompute=False)]
    nests = current_backend() in FEATURES["Model.recomputation_levels"]
    for level in [levels] if levels else range(1, (MOST_LEVELS if nests else 1) + 1):
        for number in sorted(numbers):
            plan = SequencePlan(number - 1, level)
            if all(len(loops) == level for loops in plan.loops(steps).values()):
                found.append(plan)
    return found
