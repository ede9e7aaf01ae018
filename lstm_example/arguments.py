"""The command line of the example, parsed and checked before TensorFlow is loaded.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from typing import Any, Collection, Iterator, Sequence

from keras_recompute.command_line import Parser
from keras_recompute.errors import InvalidArgumentError, TargetError, UnsupportedError
from keras_recompute.ipu import has_sdk
from keras_recompute.keras_backend import TENSORFLOW, current_backend, require
from keras_recompute.liveness.device_compilers import find_device

from .options import AUTO, Options

MICROBATCHES_PER_EPOCH = {"text": 40, "constant": 4}  # constant: the published 64 samples
LEARNING_RATE = {"text": 0.01, "constant": 0.001}

# For each option: the options that need it, and then the options that exclude it.
_NEEDED_BY: dict[str, tuple[str, ...]] = {
    "generate": ("load", "length", "temperature"),
    "save": ("save_every", "keep", "resume"),
}
_PROCESSES = "workers", "distribute"
_UNTRAINED = "sweep", "compile_only", "device"
_EXCLUDED_BY: dict[str, tuple[str, ...]] = {
    "generate": ("save", *_UNTRAINED, *_PROCESSES, "report", "json"),
    "save": _UNTRAINED,
    "log": ("generate", *_UNTRAINED),
    "validation": ("generate", *_UNTRAINED, *_PROCESSES),
}
_XLA_ONLY = (
    *("workers", "distribute", "levels", "checkpoints auto", "sweep", "device"),
    *("save", "validation", "generate", "log", "compile_only"),
)
# What Keras's backend must have for an option.
_FEATURES = {
    "workers": "distribute",
    "distribute": "distribute",
    "levels": "Model.recomputation_levels",
}


def parse_arguments(argv: Sequence[str] | None, documentation: str) -> Options:
    """Return the options, checked as far as possible without TensorFlow.

    ``documentation`` becomes the help. Raises InvalidArgumentError, or TargetError if the Poplar
    SDK is asked for and not installed.
    """
    given = vars(_parser(documentation).parse_args(argv))
    options = _complete(Options(**given))
    for why in _problems(options, given):
        raise InvalidArgumentError(why)
    _check_support(options, given)
    return options


def _complete(options: Options) -> Options:
    """Return ``options`` with the defaults that depend on others."""
    steps = options.steps_per_epoch or MICROBATCHES_PER_EPOCH[options.data]
    found: dict[str, Any] = {
        "steps_per_epoch": steps,
        "learning_rate": options.learning_rate or LEARNING_RATE[options.data],
        # By default a save at the end of each epoch.
        "save_every": options.save_every or steps // options.gradient_accumulation,
        "target": choose_target(options.target),
    }
    if options.checkpoints is not None:
        found["levels"] = options.levels or 1
    if options.device is not None:
        # The full name, whatever way the user wrote it.
        device = find_device(options.device)
        found.update(device=device.name, compile_only=True)
        if options.checkpoints is None:
            found["memory_budget"] = options.memory_budget or device.memory_bytes
    return replace(options, **found)


def _parser(documentation: str) -> Parser:
    summary, _, details = documentation.partition("\n\n")
    parser = Parser(
        prog="recompute_lstm.py",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # so that what was given is known
    )
    group: Any = None
    for option in fields(Options):
        if option.metadata.get("group"):
            group = parser.add_argument_group(option.metadata["group"])
        group.add_argument(_flag(option.name), **option.metadata["argument"])
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _problems(options: Options, given: Collection[str]) -> Iterator[str]:
    """Yield why options cannot be combined, or what they ask for is impossible."""
    for option, others in _NEEDED_BY.items():
        for other in others if option not in given else ():
            if other in given:
                yield f"{_flag(other)}: it needs --{option}; give that too, or leave it out"
    for option, others in _EXCLUDED_BY.items():
        for other in others if option in given else ():
            if other in given:
                yield (
                    f"{_flag(other)}: it cannot be combined with --{option}; leave out one of the "
                    "two"
                )
    if options.generate is not None and options.load is None:
        yield "--generate needs a network: give --load, the folder of --save"
    if options.generate == "":
        yield "--generate: there is no text to continue; give at least one character"
    yield from _problems_of_plan(options, given)
    yield from _problems_of_data(options)
    yield from _problems_of_processes(options, given)


def _problems_of_plan(options: Options, given: Collection[str]) -> Iterator[str]:
    is_auto, is_sweep = options.checkpoints is None, options.sweep is not None
    for option in ("checkpoints", "no_recompute"):
        if is_sweep and option in given:
            yield (
                f"{_flag(option)}: --sweep chooses the plans that it compares; leave out one of "
                "the two"
            )
    if is_auto and options.memory_budget is None:
        yield "--checkpoints auto needs a budget: give --memory-budget, such as 128MiB, or --device"
    if is_auto and options.no_recompute:
        yield "--no-recompute: --checkpoints auto decides that by itself; leave out one of the two"
    if options.memory_budget is not None and not is_auto and not is_sweep:
        yield (
            "--memory-budget: the number of checkpoints is given; choose it by the budget with "
            "--checkpoints auto"
        )
    # Each level groups at least two sections of the one below.
    most, steps = max(options.seq_len.bit_length() - 1, 1), options.seq_len
    if options.levels and options.levels > most:
        yield (
            f"--levels {options.levels}: {steps} steps can be nested in at most {most} levels; "
            "lower it or raise --seq-len"
        )
    option = "--sweep" if is_sweep else "--checkpoints"
    for count in options.sweep or [options.checkpoints or 0]:
        if count >= steps:
            yield (
                f"{option} {count}: a sequence of {steps} steps takes at most {steps - 1}; lower "
                "it or raise --seq-len"
            )


def _problems_of_data(options: Options) -> Iterator[str]:
    each, total = options.gradient_accumulation, options.steps_per_epoch
    # An update would otherwise span two epochs.
    if total % each:
        yield (
            f"--gradient-accumulation {each} does not divide the {total} microbatches of an "
            "epoch; change it or --steps-per-epoch"
        )
    said = f"--data {options.data}"
    if options.text and not options.is_text:
        yield f"--text {options.text}: {said} uses no text; leave out one of the two"
    if options.validation and not options.is_text:
        yield f"--validation: {said} has nothing to hold back; leave out one of the two"


def _problems_of_processes(options: Options, given: Collection[str]) -> Iterator[str]:
    several = options.workers or options.distribute
    if options.workers and options.distribute:
        yield "--workers starts a cluster and --distribute joins one: leave out one of the two"
    for option, why in {"sweep": "it compares plans", "device": "it compiles"}.items():
        if several and option in given:
            yield f"--{option}: {why} in one process; leave out --workers and --distribute"
    for option in ("wait_seconds", "heartbeat_seconds"):
        if option in given and not several:
            yield (
                f"{_flag(option)}: it is for several processes; leave it out or give --workers or "
                "--distribute"
            )
    yield from sharing_problems("--workers", options.workers or 1, options)


def sharing_problems(said_by: str, workers: int, options: Options) -> Iterator[str]:
    """Yield why ``workers`` cannot share the microbatches of an update equally, if they cannot."""
    if options.gradient_accumulation % workers:
        yield (
            f"{said_by}: {workers} workers cannot share the {options.gradient_accumulation} "
            "microbatches of an update; change their number or --gradient-accumulation"
        )


def _check_support(options: Options, given: Collection[str]) -> None:
    """Raise an error for an option that target or backend lack."""
    auto = ["checkpoints auto"] if options.checkpoints is None else []
    used = {*given, *auto} - ({"levels"} if options.levels == 1 else set())
    for option in filter(used.__contains__, _XLA_ONLY):
        if option in _FEATURES:
            _require(_flag(option), _FEATURES[option])
        if options.is_for_ipu:
            raise InvalidArgumentError(
                f"{_flag(option)}: only --target xla supports it, and this is {options.target}; "
                "leave it out"
            )


def _require(option: str, feature: str) -> None:
    """Raise UnsupportedError if Keras's backend lacks ``feature``, which ``option`` needs."""
    try:
        require(feature)
    except UnsupportedError as error:
        raise UnsupportedError(f"{option}: {error}") from None


def choose_target(wanted: str) -> str:
    """Return the target to run on: on other backends than TensorFlow's, the backend.

    Raises TargetError if the backend does not support ``wanted``, and UnsupportedError if it is not
    installed.
    """
    require("Model")
    backend = current_backend()
    if backend != TENSORFLOW:
        if wanted == AUTO:
            return backend
        _require(f"--target {wanted}", "ipu")
    # The SDK replaces this Python's TensorFlow, so one environment has one of them.
    is_there = has_sdk()
    if wanted == AUTO:
        return "ipu" if is_there else "xla"
    if wanted == "xla" and is_there:
        raise TargetError(
            "--target xla needs stock TensorFlow 2.18 or later, and this Python has the Poplar "
            "SDK's: use another Python environment, or --target ipu-model"
        )
    if wanted != "xla" and not is_there:
        raise TargetError(
            f"--target {wanted} needs the Poplar SDK's TensorFlow, which this Python lacks: "
            "enable the SDK and use its Python environment, or --target xla"
        )
    return wanted
