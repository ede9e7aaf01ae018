"""Say whether a model trains on a device that is not here, and with how many checkpoints.

    PROGRAM MODEL --device h100 --batch 8 --length 2048 --dtype mixed_bfloat16
    PROGRAM llama.py:build --device a100-80 --batch 1 --length 8192 --lora 8
    PROGRAM Llama3Backbone:config.json --device v5e --devices 8 --batch 8 --length 2048

MODEL is a .keras file, a function that returns a model (module:function or file.py:function), the
JSON of a model's configuration, or a class of KerasHub with one (Class:config.json). Its weights
are never allocated: the whole training step, with the update, is compiled by the device's own
compiler, which takes a minute or so per program. What was compiled before is not compiled again.
A backbone of KerasHub that reads text is trained to predict tokens. A model without a loss is
trained by the squares of its outputs. Keras runs on JAX unless KERAS_BACKEND says otherwise.
Exit code: 0 it fits, 1 it does not, 2 for a wrong argument or a compiler that failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from ..command_line import Parser, path_to, positive_number, whole_number
from ..errors import DeviceError, InvalidArgumentError, RecomputeError
from ..keras_backend import JAX, current_backend, require
from ..liveness.device_compilers.limits import CompileLimits, compile_limits
from ..liveness.local_device import LOCAL, device_named
from ..report import write_report
from ..report.output import print_error
from ..report.tables import add_row, print_table, table
from ..seams.keras.quantization import MODES_WITHOUT_VALUES
from ..sizes import format_bytes, parse_bytes
from .held_bytes import COLLECTIVES, HELD, held_bytes

if TYPE_CHECKING:
    from .answer import Answer
    from .largest import Largest

FITS, DOES_NOT_FIT, FAILED, INTERRUPTED = 0, 1, 2, 130
_OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "lion")


def main(
    argv: Sequence[str] | None = None, *, console: Console | None = None, program: str = "fits"
) -> int:
    """Answer one question and return the exit code; errors are one line on standard error."""
    try:
        arguments = _parser(program).parse_args(argv)
        return _answer(arguments, console or Console())
    except SystemExit as done:  # --help
        return done.code if isinstance(done.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (RecomputeError, OSError, MemoryError) as error:
        print_error(f"{program}: {' '.join(str(error).split())}")
        return FAILED


def _parser(program: str) -> argparse.ArgumentParser:
    text = (__doc__ or "").replace("PROGRAM", program)
    parser = Parser(program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", metavar="MODEL")
    add("--device", required=True, metavar="NAME", help="such as h100, v5e; local is this machine")
    add("--batch", type=whole_number(1), required=True, metavar="N", help="of all devices")
    add(
        "--length",
        type=_length,
        action="append",
        default=[],
        metavar="[INPUT=]N",
        help="of sequences that have none; of one input, where theirs differ",
    )
    add("--dtype", metavar="POLICY", help="such as mixed_bfloat16 (default: Keras's own)")
    add("--optimizer", choices=_OPTIMIZERS, help="(default: the model's own, else adamw)")
    add("--quantize", choices=MODES_WITHOUT_VALUES, help="store weights so, by model.quantize")
    add("--lora", type=whole_number(1), metavar="RANK", help="train adapters of this rank alone")
    add(
        "--devices",
        type=_mesh,
        default=(1, 1),
        metavar="N",
        help="how many divide the batch; with NxM, M divide the weights",
    )
    add("--memory", metavar="SIZE", help="what a run may take of the device (default: all)")
    add("--timeout", type=positive_number, metavar="S", help="of one compilation (default: 600)")
    add("--compile-memory", metavar="SIZE", help="of one compilation (default: all there is)")
    add("--no-search", action="store_true", help="leave out the largest batch and length")
    add("--report", type=path_to("folder"), metavar="DIR", help="write the report and its page")
    return parser


def _mesh(text: str) -> tuple[int, int]:
    first, times, second = text.partition("x")
    count = whole_number(1, 4096)
    return count(first), count(second) if times else 1


def _length(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    return name, whole_number(1)(number)


def _answer(arguments: argparse.Namespace, console: Console) -> int:
    _prepare_backend(*arguments.devices)
    device = device_named(arguments.device)
    budget = device.memory_bytes if arguments.memory is None else parse_bytes(arguments.memory)
    limits = _limits(arguments)
    # Keras is imported here.
    from .answer import Question, Size
    from .model_sources import build

    made = build(
        arguments.model,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        lora=arguments.lora,
        optimizer=arguments.optimizer,
        devices=arguments.devices,
    )
    lengths = dict(arguments.length)
    size = Size(arguments.batch, lengths.pop("", None), tuple(lengths.items()))
    with compile_limits(limits):
        question = Question(made.model, size, device=device, budget_bytes=budget)
        answer = question.answer()
        title = f"{made.model.name}, {made.model.count_params():,} weights"
        _print(answer, title, made.step, device.title, console)
        if not arguments.no_search:
            _print_largest("batch", question.largest_batch(), console)
            _print_largest("length", question.largest_length(), console)
    if arguments.report is not None:
        if answer.planned is None:
            raise DeviceError(
                f"there is no report: the compiler for {device.title} refused the program, since "
                "it does not fit"
            )
        written = write_report(answer.planned, arguments.report, title=title, page=True)
        console.print(f"\nwritten: {', '.join(map(str, written))}", highlight=False)
    return FITS if answer.fits else DOES_NOT_FIT


def _limits(arguments: argparse.Namespace) -> CompileLimits:
    seconds, memory = arguments.timeout, arguments.compile_memory
    if arguments.device == LOCAL and (seconds or memory):
        raise InvalidArgumentError(
            "--timeout and --compile-memory limit the compilers of devices that are not here, and "
            "--device local compiles in this process: use `timeout` and `ulimit -v` of the shell"
        )
    return CompileLimits(seconds, None if memory is None else parse_bytes(memory))


def _prepare_backend(batch_parts: int, weight_parts: int) -> None:
    """Have Keras run on the backend in KERAS_BACKEND, or on JAX, with one device for each part.

    JAX uses no GPU of this machine.
    """
    devices = batch_parts * weight_parts
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", JAX)
    if devices > 1 and current_backend() != JAX:
        raise InvalidArgumentError(
            f"--devices divides models on Keras's JAX backend alone, not on {current_backend()}: "
            "unset KERAS_BACKEND"
        )
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if devices > 1:
        count = f"--xla_force_host_platform_device_count={devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"
    require("liveness.abstract")


def _print(answer: Answer, title: str, step: str, device: str, console: Console) -> None:
    size = answer.size
    length = "" if size.length is None else f" of {size.length:,}"
    batch = f"{title}. {step}, batch {size.batch:,}{length}"
    budget = format_bytes(answer.budget_bytes)
    console.print(f"{batch}, on {device} with {budget}", highlight=False, soft_wrap=True)
    steps = {"plain": answer.plain}
    if answer.plan.line:
        steps["with checkpoints"] = answer.planned
    rows = table(console, ["", *steps], right=range(1, 3))
    held = [held_bytes(program) if program else {} for program in steps.values()]
    for name in HELD:
        if name == COLLECTIVES and not any(each.get(name) for each in held):
            continue  # as on one device
        add_row(rows, name, *(format_bytes(each[name]) if each else "" for each in held))
    needs = answer.plain_bytes, answer.planned_bytes
    add_row(rows, "a run needs", *map(format_bytes, needs[: len(steps)]))
    print_table(console, "Alive at the peak, on each device", rows)
    console.print(f"\n{_verdict(answer)}", highlight=False, soft_wrap=True)


def _verdict(answer: Answer) -> str:
    needed, budget = answer.planned_bytes, answer.budget_bytes
    if not answer.fits:
        return (
            f"No: with the leanest checkpoints a step needs {format_bytes(needed)}, "
            f"{format_bytes(needed - budget)} more than there is"
        )
    where = answer.plan.line
    if not where:
        return f"Yes, without checkpoints: {format_bytes(budget - needed)} are left"
    return f"Yes, with {where}: {format_bytes(budget - needed)} are left"


def _print_largest(what: str, found: Largest | None, console: Console) -> None:
    if found is None:
        return
    beyond = ""
    if found.exceeds is not None:
        beyond = f"; {found.exceeds:,} needs {format_bytes(found.exceeds_bytes)}"
    largest = "none" if found.fits is None else f"{found.fits:,}"
    said = f"Largest {what}, with the leanest checkpoints: {largest}{beyond}"
    console.print(said, highlight=False, soft_wrap=True)
