"""A CBOR encoder (RFC 8949) for None, bool, int, str, list and dict, in the shortest form."""

from __future__ import annotations

from typing import Any


def encode(value: Any) -> bytes:
    """Return ``value`` as CBOR.

    Raises TypeError for other types.
    """
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", False: b"\xf4", True: b"\xf5"}[value]
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, str):
        data = value.encode()
        return _head(3, len(data)) + data
    if isinstance(value, (list, tuple)):
        return _head(4, len(value)) + b"".join(map(encode, value))
    if isinstance(value, dict):
        pairs = [encode(key) + encode(inside) for key, inside in value.items()]
        return _head(5, len(value)) + b"".join(pairs)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as CBOR here")


def _head(major: int, number: int) -> bytes:
    """Return the initial bytes of major type ``major`` with its argument (section 3)."""
    if number < 24:
        return bytes([major << 5 | number])
    # The values 24 to 27 announce an argument of 1, 2, 4 or 8 bytes.
    for more, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | more]) + number.to_bytes(size, "big")
    raise TypeError(f"{number} has more than 64 bits")
