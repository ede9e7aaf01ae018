"""Run a script as several workers on this machine.

    python3 -m keras_recompute.distribute --workers 2 SCRIPT ...

Each worker finds the cluster in its TF_CONFIG. What they print comes out line by line, that of all
but the first with its number in front. The exit code is 0, or that of the first worker that failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..command_line import LARGEST_WHOLE_NUMBER, Parser, whole_number
from ..errors import InvalidArgumentError
from .launcher import check_numbers, launch

PROGRAM = "python3 -m keras_recompute.distribute"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return its exit code, 2 for one that is wrong."""
    try:
        options = _options(argv)
        module = ["-m"] if options.is_module else []
        command = [sys.executable, *module, options.script, *options.arguments]
        return launch(command, options.workers, restarts=options.restarts)
    except InvalidArgumentError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return what is asked for. Raises InvalidArgumentError for what no worker could do."""
    whole = whole_number(-LARGEST_WHOLE_NUMBER)  # check_numbers says which can be
    parser = Parser(
        PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=whole, required=True, metavar="N", help="processes to start"
    )
    parser.add_argument(
        "--restarts",
        type=whole,
        default=0,
        metavar="N",
        help="restarts of all workers after a failure (0)",
    )
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is the name of a module, as for python3 -m",
    )
    parser.add_argument("script", help="the Python script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    check_numbers(workers=options.workers, restarts=options.restarts)
    if not options.script:
        raise InvalidArgumentError("the name of the script is empty")
    if not options.is_module and not _is_readable(options.script):
        raise InvalidArgumentError(
            f"the script {options.script!r} cannot be read: name an existing file"
        )
    return options


def _is_readable(script: str) -> bool:
    """Whether Python may find a program there; it runs folders and archives too."""
    return os.path.exists(script) and os.access(script, os.R_OK)


if __name__ == "__main__":
    sys.exit(main())
