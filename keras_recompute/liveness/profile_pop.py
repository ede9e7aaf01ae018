"""``profile.pop`` as this project writes it: a line that says what it is and for which device, then
the record.

The Poplar SDK writes files of this name whose bytes are not documented publicly. Ours stands in the
same place and has a format of its own, which its first line says; the SDK's ``pva`` does not read
it. Two lines of JSON:

    {"format": "keras-recompute profile.pop", "note": ..., "schema_version": 1, "target": {...}}
    the program, as in liveness.json
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..atomic_files import FILE, PathLike, atomic_write, ensure_folder, file_kind, read_whole
from ..errors import InvalidArgumentError, ReportError
from .program import RECORD_BYTES_AT_MOST, Program

POP_NAME = "profile.pop"
FORMAT = "keras-recompute profile.pop"
SCHEMA_VERSION = 1
NOTE = (
    "written by keras-recompute on stock TensorFlow; "
    "not a file of the Poplar SDK, whose pva cannot read it"
)
_FIRST_LINE_AT_MOST = 4096  # ours is shorter; a foreign file may have no line at all


@dataclass(frozen=True)
class IpuTarget:
    """The device that a profile is for; by default one Mk2 IPU. All numbers are positive.

    Raises:
        InvalidArgumentError: A number is no int from 1 on.

    Examples:
        >>> kr.liveness.IpuTarget(ipus=2).memory_bytes  # 2 * 1472 tiles of 624 KiB
        1881145344
    """

    ipus: int = 1
    tiles_per_ipu: int = 1472
    bytes_per_tile: int = 624 * 1024
    replicas: int = 1

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for a number that is no positive int."""
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise InvalidArgumentError(
                    f"IpuTarget {name} is {value!r}: a whole number from 1 was expected"
                )

    @property
    def tiles(self) -> int:
        """Number of tiles of all IPUs."""
        return self.ipus * self.tiles_per_ipu

    @property
    def memory_bytes(self) -> int:
        """Memory of all tiles."""
        return self.tiles * self.bytes_per_tile


@dataclass(frozen=True)
class Profile:
    """What a ``profile.pop`` of ours holds."""

    program: Program
    target: IpuTarget = IpuTarget()

    @staticmethod
    def from_bytes(data: bytes) -> Profile:
        """Read the contents of a file. Raises ReportError for any but ours, the Poplar SDK's
        included.
        """
        first, newline, _ = data[:_FIRST_LINE_AT_MOST].partition(b"\n")
        head = _head(first)
        if head is None or not newline:
            raise ReportError(
                f"this is no {POP_NAME} of keras-recompute: its first line does not say so. If the "
                "Poplar SDK wrote it, only "
                "the SDK's pva can read it"
            )
        version = head.get("schema_version")
        if type(version) is not int or version < 1:
            raise ReportError(
                f"the profile has schema_version {version!r}; a whole number from 1 was expected"
            )
        if version > SCHEMA_VERSION:
            raise ReportError(
                f"the profile has schema_version {version}, this release reads up to "
                f"{SCHEMA_VERSION}: "
                "a newer release wrote it, upgrade keras-recompute to read it"
            )
        target = head.get("target")
        if not isinstance(target, dict) or set(target) != {f.name for f in fields(IpuTarget)}:
            raise ReportError(
                f"the profile has target {target!r:.80}; the numbers of an IpuTarget were expected"
            )
        try:
            return Profile(Program.from_json(data[len(first) + 1 :]), IpuTarget(**target))
        except InvalidArgumentError as error:
            raise ReportError(str(error)) from error


def write_profile_pop(program: Program, path: PathLike, *, target: IpuTarget | None = None) -> None:
    """Write ``program``, for ``target`` (by default one Mk2 IPU), to the file ``path``; its folder
    is made if need be.

    Raises:
        ReportError: It cannot be written.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> target = kr.liveness.IpuTarget(ipus=2)
        >>> kr.liveness.write_profile_pop(program, "report/profile.pop", target=target)
        >>> kr.liveness.read_profile_pop("report/profile.pop").target.ipus
        2
    """
    head = {
        "format": FORMAT,
        "note": NOTE,
        "schema_version": SCHEMA_VERSION,
        "target": asdict(target or IpuTarget()),
    }
    ensure_folder(Path(path).parent)
    with atomic_write(path) as temporary:
        temporary.write_text(f"{json.dumps(head)}\n{program.to_json()}", encoding="utf-8")


def read_profile_pop(path: PathLike) -> Profile:
    """Read what ``write_profile_pop`` wrote.

    Raises:
        ReportError: It is anything else, a file of the Poplar SDK's included.

    Examples:
        >>> program = kr.liveness.profile(tf.sin, tf.TensorSpec((8,)))
        >>> kr.liveness.write_profile_pop(program, "profile.pop")
        >>> kr.liveness.read_profile_pop("profile.pop").program.compiled_by
        'XLA of tensorflow ...'
    """
    try:
        data = read_whole(path, at_most_bytes=RECORD_BYTES_AT_MOST)
    except OSError as error:
        raise ReportError(
            f"no profile could be read from {str(path)!r}: {error.strerror}"
        ) from error
    try:
        return Profile.from_bytes(data)
    except ReportError as error:
        raise ReportError(f"{str(path)!r}: {error}") from error


def is_profile_pop(path: PathLike) -> bool:
    """Return whether the file ``path`` is a ``profile.pop`` of ours, going by its first line; False
    if it is not there.

    Examples:
        >>> program = kr.liveness.profile(tf.sin, tf.TensorSpec((8,)))
        >>> kr.liveness.write_profile_pop(program, "profile.pop")
        >>> kr.liveness.is_profile_pop("profile.pop"), kr.liveness.is_profile_pop("nowhere.pop")
        (True, False)
    """
    try:
        if file_kind(path) != FILE:  # opening a pipe waits for whoever writes to it
            return False
        with Path(path).open("rb") as file:
            return _head(file.readline(_FIRST_LINE_AT_MOST)) is not None
    except OSError:
        return False


def _head(line: bytes) -> dict[str, Any] | None:
    """Return what a first line says, if it is one of ours."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) and head.get("format") == FORMAT else None
