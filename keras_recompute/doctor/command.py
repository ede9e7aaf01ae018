"""Say what holds the memory of a script's training step, and by which lines it takes less.

    PROGRAM train.py --epochs 3
    PROGRAM --device h100 --memory-budget 40GiB train.py
    PROGRAM package.training:main

SCRIPT is run with its arguments up to the first call of Keras's fit or train_on_batch, as under
`python3 SCRIPT`, or a function that takes none, as module:function or file.py:function. There the
step is compiled for the first batch, plain and with checkpoints, and the process ends: nothing is
trained, and nothing behind that line runs. Compiling takes as long as five to ten first steps.
Exit code: 0 it was found out, 2 for a wrong argument, or a script that trains nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from ..command_line import Parser, path_to
from ..errors import InvalidArgumentError, RecomputeError, RecomputeWarning
from ..liveness import Program
from ..liveness.categories import ACTIVATION, CHECKPOINT
from ..liveness.local_device import device_named
from ..planning import BudgetTooSmallError
from ..report import category_rows, write_report
from ..report.output import print_error
from ..report.tables import print_groups
from ..sizes import format_bytes, parse_bytes
from ..user_code import error_line
from .first_step import FirstStep, run_to_first_step

if TYPE_CHECKING:
    from .findings import Examination

DONE, FAILED, INTERRUPTED = 0, 2, 130
_ROWS = 8
_NO_LESS = 0.97  # of the plain peak: less than that is not worth the time of a replay
_FEW = 0.2  # of the peak: with so few activations checkpoints are not what helps


def leave_process(code: int) -> NoReturn:
    """End the process at once.

    So a script cannot catch its end, and store what was not trained.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def main(
    argv: Sequence[str] | None = None,
    *,
    console: Console | None = None,
    program: str = "doctor",
    leave: Callable[[int], NoReturn] = leave_process,
) -> int:
    """Examine one script; errors are one line on standard error.

    Returns the exit code where the script trains nothing. Else ``leave`` is called with it, in the
    middle of the script.
    """

    def failed(reason: object) -> int:
        print_error(f"{program}: {' '.join(str(reason).split())}")
        return FAILED

    def then(first_step: Callable[[], FirstStep]) -> NoReturn:
        try:
            code = _examine(first_step(), arguments, console or Console())
        except KeyboardInterrupt:
            code = INTERRUPTED
        except (RecomputeError, OSError, MemoryError) as error:
            code = failed(error)
        except Exception as error:  # what Keras says to a model or batch that do not fit
            code = failed(f"the step of {arguments.script} cannot be traced: {error_line(error)}")
        leave(code)

    try:
        arguments = _parser(program).parse_args(argv)
        # A wrong option is said before the script runs.
        if arguments.memory_budget is not None:
            arguments.memory_budget = parse_bytes(arguments.memory_budget)
        run_to_first_step(arguments.script, arguments.arguments, then=then)
    except SystemExit as done:  # --help
        return done.code if isinstance(done.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (RecomputeError, OSError, MemoryError) as error:
        return failed(error)


def _parser(program: str) -> argparse.ArgumentParser:
    text = (__doc__ or "").replace("PROGRAM", program)
    parser = Parser(program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("script", metavar="SCRIPT")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="of the script")
    add("--device", metavar="NAME", help="compile for it, such as h100 (default: what is here)")
    add("--memory-budget", metavar="SIZE", help="of a plan (default: half of the plain step)")
    add("--report", type=path_to("folder"), metavar="DIR", help="write the plain step's report")
    return parser


def _examine(step: FirstStep, arguments: argparse.Namespace, console: Console) -> int:
    # Keras is imported here, by the script.
    from .findings import Examination

    device = arguments.device
    if device is not None:
        device_named(device)
    with warnings.catch_warnings():
        # The figures say what saves nothing.
        warnings.simplefilter("ignore", RecomputeWarning)
        found = Examination(step.model, step.batch, device=device)
        _print_plain(found, step, console)
        if arguments.report is not None and found.plain is not None:
            written = write_report(found.plain, arguments.report, title=step.where, page=True)
            _say(f"\nwritten: {', '.join(map(str, written))}", console)
        _print_savings(found, arguments.memory_budget, console)
    return DONE


def _print_plain(found: Examination, step: FirstStep, console: Console) -> None:
    model, program = found.model, found.plain
    kind = type(model).__name__
    _say(f"\n{step.where} trains {model.name!r}, a {kind}, on {found.shapes}", console)
    needed = format_bytes(found.plain_bytes)
    _say(f"One step takes {needed} ({found.step})", console)
    if program is None:
        return
    for by in ("category", "layer"):
        print_groups(program, console, step=program.peak_step, by=by, rows=_ROWS)
    share = _activations(program) / max(program.peak_bytes, 1)
    recomputed = f"Checkpoints recompute activations, {share:.0%} of the peak"
    _say(f"\n{recomputed}, and do not lower the rest.", console)
    if share < _FEW:
        _say("Smaller dtypes, another optimizer or fewer trained weights lower that.", console)


def _print_savings(found: Examination, budget: int | None, console: Console) -> None:
    plain = found.plain_bytes
    lines, shown = [], []
    try:
        for each in found.savings(budget):
            if each.peak_bytes > _NO_LESS * plain:
                lines.append(each.line)
                continue
            time = "" if each.time_ratio is None else f", time x {each.time_ratio:.2f} (predicted)"
            share = each.peak_bytes / plain
            shown += [f"# {format_bytes(each.peak_bytes)}, {share:.0%} of the plain step{time}"]
            shown += [each.line, ""]
    except BudgetTooSmallError as refusal:
        least = format_bytes(refusal.smallest_budget_bytes)
        _say(f"\nNo plan fits {format_bytes(refusal.budget_bytes)}: the least is {least}", console)
    except InvalidArgumentError as refusal:
        _say(f"\nNo plan: {refusal}", console)
    if not shown:
        tried = f", and not by {', '.join(lines)}" if lines else ""
        _say(f"\nNo checkpoints were found that lower the peak by 3%{tried}", console)
        return
    batch = "; (x, y) is a batch" if "(x" in "".join(shown) else ""
    _say(f"\nAny of these, in front of model.compile(...), keeps the gradients{batch}:", console)
    _say("\nimport keras_recompute as kr\n", console)
    _say("\n".join(shown).rstrip(), console)


def _activations(program: Program) -> int:
    held = dict(category_rows(program))
    return held.get(ACTIVATION, 0) + held.get(CHECKPOINT, 0)


def _say(text: str, console: Console) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
