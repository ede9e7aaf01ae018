"""Argument parsing for every command line here: one-line errors, and converters that check values.

Runs on Python 3.8.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Callable, NoReturn

from .errors import InvalidArgumentError

# Products of a few such numbers still fit in the 64 bits in which TensorFlow counts.
LARGEST_WHOLE_NUMBER = 10**12
# Networks are trained in float32, where numbers outside this range become 0 or infinite.
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_LONGEST = 400  # characters of a message, which may quote an argument of any length
_SHOWN = 80  # characters of a value that is wrong


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises InvalidArgumentError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise InvalidArgumentError without the usage, which has many lines."""
        cut = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        raise InvalidArgumentError(f"{cut} (--help lists the options)")


def whole_number(at_least: int, at_most: int = LARGEST_WHOLE_NUMBER) -> Callable[[str], int]:
    """Return a converter to whole numbers from ``at_least`` to ``at_most``."""
    begin = f" from {at_least} on" if at_least >= 0 else ""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise wrong(text, f"is not a whole number{begin}") from None
        if number < at_least:
            raise wrong(text, f"is too small: the least is {at_least}", quoted=False)
        if number > at_most:
            raise wrong(text, f"is too large: the most is {at_most}", quoted=False)
        return number

    return convert


def number(what: str, is_one: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a converter to finite numbers that satisfy ``is_one``.

    ``what`` describes them in the error message.
    """

    def convert(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            raise wrong(text, "is not a number") from None
        if not (math.isfinite(found) and is_one(found)):
            raise wrong(text, f"is not {what}", quoted=False)
        if abs(found) > LARGEST_FLOAT32:
            raise wrong(text, f"is too large: the most is {LARGEST_FLOAT32:.3g}", quoted=False)
        if 0 < abs(found) < SMALLEST_FLOAT32:
            raise wrong(text, f"is too small: the least is {SMALLEST_FLOAT32:.3g}", quoted=False)
        return found

    return convert


positive_number = number("a finite number above zero", lambda found: found > 0)


def path_to(what: str) -> Callable[[str], Path]:
    """Return a converter to paths; ``what`` says of what, such as a file or a folder."""

    def convert(text: str) -> Path:
        # An unset shell variable gives an empty path, which would mean the current folder.
        if not text:
            raise argparse.ArgumentTypeError(f"the name of the {what} is empty")
        if "://" in text:  # a path would be a folder that is called so
            raise wrong(
                text, "is an address, and only files of this machine can be read and written"
            )
        if "\0" in text:
            raise wrong(text, "has a character that no file name can have")
        return Path(text)

    return convert


def wrong(text: str, why: str, *, quoted: bool = True) -> argparse.ArgumentTypeError:
    """Return the error for the value ``text``, cut to its first characters."""
    shown = repr(text) if quoted else text
    cut = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return argparse.ArgumentTypeError(f"{cut} {why}")
