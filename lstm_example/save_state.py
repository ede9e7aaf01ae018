"""``state.json`` of a save: the updates done and their figures, with digests of every byte.

The file is a JSON object whose last entry is the SHA-256 of all bytes before it. Saves of version
1, by keras-recompute 0.2.0, have no such entry. They are read only with exactly that version's
names, so that a save whose digest entry is damaged does not pass for one.

Runs on Python 3.8.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any, Callable, NoReturn

from .save_files import STATE

FORMAT, SCHEMA_VERSION = "keras-recompute training save", 2
_DIGEST = "sha256_of_the_above"
_CLOSING = "\n}"  # of the object, as json.dumps writes it with an indent
_WITHOUT_DIGEST = 1  # the schema version of keras-recompute 0.2.0


class DamagedStateError(ValueError):
    """The file was changed or holds what no run writes; ``str`` says what."""


class NewerStateError(ValueError):
    """A later version of this package wrote the file."""


def encode_state(state: dict[str, Any]) -> bytes:
    """Return the contents of the file. Raises ValueError for a figure that is not finite."""
    document = {"format": FORMAT, "schema_version": SCHEMA_VERSION, **state}
    # JSON has no NaN, and other readers would refuse it.
    text = json.dumps(document, indent=1, allow_nan=False)
    begin = f"{text[: -len(_CLOSING)]},\n".encode()
    return begin + _end(begin)


def decode_state(data: bytes) -> dict[str, Any]:
    """Return the state given to ``encode_state``, and ``sha256``, the digests of the other files.

    Raises DamagedStateError or NewerStateError.
    """
    try:
        state = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise DamagedStateError(f"{STATE} is damaged") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise DamagedStateError("it is not a save of recompute_lstm.py")
    version = state.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerStateError
    if type(version) is not int or version < _WITHOUT_DIGEST:
        raise DamagedStateError(f"{STATE} is damaged: version {version!s:.20} does not exist")
    if version > _WITHOUT_DIGEST:
        # The digest's length is fixed, so the end can be cut off without parsing.
        begin = data[: -len(_end(b""))]
        if begin + _end(begin) != data:
            raise DamagedStateError(f"{STATE} has changed since it was written")
        state.pop(_DIGEST, None)
    is_valid = _validity(state)
    for name in sorted(state.keys() ^ is_valid.keys()):
        raise DamagedStateError(f"{STATE} is damaged: {name!r:.40} is missing or unknown")
    for name in is_valid:
        if not is_valid[name]:
            raise DamagedStateError(f"{STATE} is damaged: its {name!r} are impossible")
    return state


def _end(begin: bytes) -> bytes:
    return f' "{_DIGEST}": "{hashlib.sha256(begin).hexdigest()}"{_CLOSING}'.encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _validity(state: dict[str, Any]) -> dict[str, bool]:
    """Return for each name of a state whether a run can have written its value."""
    get: Callable[[str], Any] = state.get
    updates, versions, rows = get("updates"), get("versions"), get("validation")
    is_count = type(updates) is int and updates >= 1
    needed = {"tensorflow", "keras"} if state["schema_version"] == _WITHOUT_DIGEST else set()
    return {
        "format": True,
        "schema_version": True,
        "settings": isinstance(get("settings"), dict),
        "versions": isinstance(versions, dict) and needed <= versions.keys(),
        "sha256": isinstance(get("sha256"), dict),
        "updates": is_count,
        "losses": _are_figures(get("losses"), updates),
        "gradient_norms": _are_figures(get("gradient_norms"), updates),
        "validation": is_count
        and isinstance(rows, list)
        and all(_is_validation(row, updates) for row in rows),
        "trained_seconds": _is_figure(get("trained_seconds")) and get("trained_seconds") >= 0,
    }


def _is_figure(value: Any) -> bool:
    """Whether ``value`` is a finite number, and one that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _are_figures(values: Any, count: Any) -> bool:
    return isinstance(values, list) and len(values) == count and all(map(_is_figure, values))


def _is_validation(row: Any, updates: int) -> bool:
    if not isinstance(row, dict) or row.keys() != {"update", "loss", "trained_seconds"}:
        return False
    is_update = type(row["update"]) is int and 1 <= row["update"] <= updates
    return is_update and _is_figure(row["loss"]) and _is_figure(row["trained_seconds"])
