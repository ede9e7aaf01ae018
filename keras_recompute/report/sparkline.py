"""A curve in one line of text, drawn from the maximum of each stretch of steps.

The maximum, and not the mean, so that no peak is lost.
"""

from __future__ import annotations

from typing import Sequence, TypeVar

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-:=+*#"
T = TypeVar("T")


def stretches(values: Sequence[T], width: int) -> list[Sequence[T]]:
    """Cut ``values`` into at most ``width`` non-empty stretches of nearly equal length."""
    # Fewer values than characters are not stretched.
    count = min(len(values), width)
    return [values[n * len(values) // count : (n + 1) * len(values) // count] for n in range(count)]


def sparkline(
    values: Sequence[int], *, width: int, top: int | None = None, blocks: str = BLOCKS
) -> str:
    """Return ``values`` as a curve of at most ``width`` characters, from 0 to ``top``.

    ``top`` is by default the largest value.
    """
    top = max(values, default=0) if top is None else top
    last = len(blocks) - 1
    signs = []
    for stretch in stretches(values, width) if values and width > 0 else ():
        level = min(max(max(stretch) * last, 0) // top, last) if top > 0 else 0
        signs.append(blocks[level])
    return "".join(signs)


def initials(names: Sequence[str | None], *, width: int, blank: str = " ") -> str:
    """Return the initial of the most frequent name of each stretch; ``blank`` if it has none."""
    signs = []
    for stretch in stretches(names, width) if names and width > 0 else ():
        known = [name or "" for name in stretch]
        found = max(sorted(set(known)), key=known.count)  # sorted, so that ties always end alike
        signs.append(found[:1] or blank)
    return "".join(signs)
