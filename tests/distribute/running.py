"""Starting the programs of these tests as users start theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCHER = (sys.executable, "-m", "keras_recompute.distribute")


def run(*arguments, launcher=(), timeout=550, **options):
    """Return what became of ``python3 -m arguments``, or of the arguments of a ``launcher``."""
    command = [*(launcher or (sys.executable, "-m")), *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout, **options
    )


def results(done):
    """Return the objects of JSON that a program printed, by the number of the worker that did."""
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for line in done.stdout.splitlines():
        number, _, text = line.partition("] ") if line.startswith("[") else ("[0", "", line)
        found.setdefault(int(number[1:]), []).append(json.loads(text))
    return found
