"""A disk cache of compiled programs, by their source, device and compiler.

An entry is a folder that appears whole, by renaming, so that processes can share the cache. If two
processes compile the same program, the second finds the first's entry in its place. A damaged
entry, as after a full disk, is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PROGRAM, _ANSWER, _SUM = "program.hlo_proto.pb", "answer.json", "sha256"
ENTRIES_AT_MOST = 200  # some 300 KiB each; the oldest go first


def cache_folder() -> Path:
    """Return the folder of the cache: ``KERAS_RECOMPUTE_CACHE``, or in the user's cache folder."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "keras-recompute")
    return Path(os.environ.get("KERAS_RECOMPUTE_CACHE") or user) / "devices"


def cache_key(*parts: bytes) -> str:
    """Return the name of the entry for ``parts``, a digest of them."""
    digest = hashlib.sha256()
    for part in parts:
        # With its length, so that different parts never run together to the same bytes.
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def find_entry(key: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return the program and the answer stored under ``key``, or None without a complete entry."""
    entry = cache_folder() / key
    if not entry.is_dir():
        return None
    try:
        answer = json.loads((entry / _ANSWER).read_bytes())
        program = (entry / _PROGRAM).read_bytes()
        if hashlib.sha256(program).hexdigest() != answer.pop(_SUM):
            raise ValueError("it holds another program")
    except (OSError, ValueError, KeyError, AttributeError):
        shutil.rmtree(entry, ignore_errors=True)
        return None
    with suppress(OSError):
        os.utime(entry)  # used last now
    return program, answer


def store(key: str, program: bytes, answer: Mapping[str, Any]) -> None:
    """Store an entry; errors, as of a full disk, are ignored."""
    folder = cache_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with work_folder(folder) as made:
            (made / _PROGRAM).write_bytes(program)
            (made / _ANSWER).write_text(
                json.dumps({**answer, _SUM: hashlib.sha256(program).hexdigest()})
            )
            # Fails if another process was first, which leaves its equal entry in place.
            made.rename(folder / key)
        _forget_oldest(folder)


@contextmanager
def work_folder(inside: Path | None = None) -> Iterator[Path]:
    """Give an empty folder that is removed afterwards, unless it was renamed."""
    made = Path(tempfile.mkdtemp(prefix=".keras-recompute-", dir=inside))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _forget_oldest(folder: Path) -> None:
    # Hidden folders are entries that are still being written.
    entries = sorted(
        (e for e in folder.iterdir() if not e.name.startswith(".")),
        key=lambda entry: entry.stat().st_mtime,
    )
    for entry in entries[: max(0, len(entries) - ENTRIES_AT_MOST)]:
        shutil.rmtree(entry, ignore_errors=True)
