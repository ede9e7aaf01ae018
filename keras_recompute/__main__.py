"""Command line ``keras-recompute``: reports on memory, and whether a model fits a device.

It also runs scripts written for IPUs. The same as ``python3 -m keras_recompute``.
"""

from __future__ import annotations

import sys
from typing import Sequence

PROGRAM = "keras-recompute"
MORE = """
    keras-recompute fits MODEL --device h100 --batch 8    whether a model trains there
    keras-recompute doctor SCRIPT [ARGS...]    what its training step could save
    keras-recompute run SCRIPT [ARGS...]    run a script written for Graphcore's Keras"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors raised by a script that is run propagate."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["run"]:
        from .ipu.__main__ import main as run

        return run(given[1:], program=f"{PROGRAM} run")
    if given[:1] == ["fits"]:
        from .fits.command import main as fits

        return fits(given[1:], program=f"{PROGRAM} fits")
    if given[:1] == ["doctor"]:
        from .doctor.command import main as doctor

        return doctor(given[1:], program=f"{PROGRAM} doctor")
    if given == ["--version"]:
        from . import __version__

        print(f"{PROGRAM} {__version__}")
        return 0
    from .report.commands import main as look

    return look(given, program=PROGRAM, more=MORE)


if __name__ == "__main__":
    sys.exit(main())
