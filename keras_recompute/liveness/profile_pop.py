"""``profile.pop`` in this project's own format: a header line with the device, then the record.

The Poplar SDK writes files of this name in a format that is not documented publicly, and its
``pva`` cannot read ours. The first line says which of them it is. Two lines of JSON:

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
    "written by keras-recompute on stock TensorFlow; not a file of the Poplar SDK, whose pva "
    "cannot read it"
)
_FIRST_LINE_AT_MOST = 4096  # ours is shorter; a foreign file may have no line at all


@dataclass(frozen=True)
class IpuTarget:
    """The device of a profile, by default one Mk2 IPU. All numbers are positive.

    Raises:
        InvalidArgumentError: A number is not a positive int.

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
                    f"IpuTarget {name} is {value!r}: give a whole number from 1 on"
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
    """The contents of a ``profile.pop`` in this project's format."""

    program: Program
    target: IpuTarget = IpuTarget()

    @staticmethod
    def from_bytes(data: bytes) -> Profile:
        """Read the contents of a file. Raises ReportError for other formats."""
        first, newline, _ = data[:_FIRST_LINE_AT_MOST].partition(b"\n")
        head = _head(first)
        if head is None or not newline:
            raise ReportError(
                f"this is not a {POP_NAME} of keras-recompute, by its first line. Open a file of "
                "the Poplar SDK with the SDK's pva"
            )
        version = head.get("schema_version")
        if type(version) is not int or version < 1:
            raise ReportError(
                f"the profile has schema_version {version!r} instead of a whole number from 1 on"
            )
        if version > SCHEMA_VERSION:
            raise ReportError(
                f"the profile has schema_version {version}, and this release reads up to "
                f"{SCHEMA_VERSION}: upgrade keras-recompute to read it"
            )
        target = head.get("target")
        if not isinstance(target, dict) or set(target) != {f.name for f in fields(IpuTarget)}:
            raise ReportError(
                f"the profile has target {target!r:.80} instead of the numbers of an IpuTarget"
            )
        try:
            return Profile(Program.from_json(data[len(first) + 1 :]), IpuTarget(**target))
        except InvalidArgumentError as error:
            raise ReportError(str(error)) from error


def write_profile_pop(program: Program, path: PathLike, *, target: IpuTarget | None = None) -> None:
    """Write ``program`` and its ``target``, by default one Mk2 IPU, to the file ``path``.

    The folder is created if it does not exist.

    Raises:
        ReportError: The file cannot be written.

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
    """Read a file of ``write_profile_pop``.

    Raises:
        ReportError: It is anything else, such as a file of the Poplar SDK.

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
    """Return whether the first line of the file ``path`` says that it is in our format.

    False if there is no file.

    Examples:
        >>> program = kr.liveness.profile(tf.sin, tf.TensorSpec((8,)))
        >>> kr.liveness.write_profile_pop(program, "profile.pop")
        >>> kr.liveness.is_profile_pop("profile.pop"), kr.liveness.is_profile_pop("nowhere.pop")
        (True, False)
    """
    try:
        if file_kind(path) != FILE:  # opening a pipe would wait for its writer
            return False
        with Path(path).open("rb") as file:
            return _head(file.readline(_FIRST_LINE_AT_MOST)) is not None
    except OSError:
        return False


def _head(line: bytes) -> dict[str, Any] | None:
    """Return the header of a first line in our format, else None."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) and head.get("format") == FORMAT else None
