"""Conversion between bytes and text such as "128 MiB", in this module alone.

Units are binary (1 KiB = 1024 bytes), as allocators count. ``MB``, which may mean either, is
refused.
"""

import re
from decimal import Decimal
from typing import Union

from .errors import InvalidArgumentError

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MOST_BYTES = 2**63 - 1  # what counts in 64 bits, as allocators do
_SIZE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*\Z")


def format_bytes(count: Union[int, float]) -> str:
    """Return a number of bytes as text of three significant digits, such as "128 MiB"."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} B"
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f} {unit}"


def parse_bytes(text: Union[str, int]) -> int:
    """Return the number of bytes in a text such as ``"128MiB"``, which is ``2**27``.

    A bare number is bytes. A fraction needs a unit and is rounded down. Raises InvalidArgumentError
    for anything else.
    """
    match = _SIZE.match(str(text))
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    unit = match["unit"].lower() if match else ""
    if not match or (unit or "b") not in units or (not unit and "." in match["number"]):
        raise InvalidArgumentError(
            f"a size in bytes was expected, not {text!r:.80}: write a whole number of bytes, or a "
            f"number with one of {', '.join(_UNITS)}, as in '128MiB'"
        )
    count = int(Decimal(match["number"]) * units[unit or "b"])
    if count > _MOST_BYTES:
        raise InvalidArgumentError(
            f"{str(text)!r:.80} is more than any memory: the most is {format_bytes(_MOST_BYTES)}"
        )
    return count
