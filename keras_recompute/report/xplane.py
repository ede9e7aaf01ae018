"""The protocol buffer that makes XProf list a run: a trace without events, with a program.

``XSpace`` (tsl/profiler/protobuf/xplane.proto) is encoded field by field, since a report must not
need TensorFlow, which has the classes. XProf looks for programs in the statistics called "Hlo
Proto" of the plane "/host:metadata", and offers no memory viewer without one.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

_VARINT, _LENGTH = 0, 2  # wire types
_SPACE_PLANE, _SPACE_HOST = 1, 4
_PLANE_NAME, _PLANE_EVENT_METADATA, _PLANE_STAT_METADATA = 2, 4, 5
_EVENT_ID, _EVENT_NAME, _EVENT_STAT = 1, 2, 5
_STAT_METADATA_ID, _STAT_BYTES = 1, 6
_STAT_ID, _STAT_NAME = 1, 2
_KEY, _VALUE = 1, 2
_PROGRAM_ID, _HLO_PROTO_ID = 1, 1


def xspace(name: str, serialized: bytes, *, host: str) -> bytes:
    """Return a serialized ``XSpace`` with the program ``name`` on ``host``."""
    stat = _number(_STAT_METADATA_ID, _HLO_PROTO_ID) + _bytes(_STAT_BYTES, serialized)
    event = (
        _number(_EVENT_ID, _PROGRAM_ID)
        + _bytes(_EVENT_NAME, name.encode())
        + _bytes(_EVENT_STAT, stat)
    )
    kind = _number(_STAT_ID, _HLO_PROTO_ID) + _bytes(_STAT_NAME, b"Hlo Proto")
    plane = (
        _bytes(_PLANE_NAME, b"/host:metadata")
        + _bytes(_PLANE_EVENT_METADATA, _number(_KEY, _PROGRAM_ID) + _bytes(_VALUE, event))
        + _bytes(_PLANE_STAT_METADATA, _number(_KEY, _HLO_PROTO_ID) + _bytes(_VALUE, kind))
    )
    return _bytes(_SPACE_PLANE, plane) + _bytes(_SPACE_HOST, host.encode())


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = bytearray()
    # Base 128, least significant group first; the high bit says that more follow.
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
