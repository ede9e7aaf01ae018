"""Run a script as several workers on this machine: ``python3 -m keras_recompute.distribute --workers 2 SCRIPT ...``.

Each worker finds the cluster in its TF_CONFIG. What they print comes out line by line, that of all but the first with its
number in front. The exit code is 0, or that of the first worker that failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import InvalidArgumentError
from .launch import launch


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m keras_recompute.distribute", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="processes to start")
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help="times to start all again after a failure (0)")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module, as for python3 -m")
    parser.add_argument("script", help="the Python script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")
    options = parser.parse_args(argv)
    try:
        module = ["-m"] if options.is_module else []
        return launch([sys.executable, *module, options.script, *options.arguments], options.workers, restarts=options.restarts)
    except InvalidArgumentError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
