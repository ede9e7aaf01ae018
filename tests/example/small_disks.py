"""A disk of its own that is soon full, where this system lets the tests mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(tmp_path, size):
    """Give the folder of a disk with room for ``size``, as mount writes it; skip the test where
    there can be none.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path, *, free_bytes):
    """Make the file ``path`` so large that its disk has so many bytes left."""
    path.write_bytes(b"")
    space = os.statvfs(path.parent)
    path.write_bytes(b"x" * (space.f_bavail * space.f_frsize - free_bytes))
