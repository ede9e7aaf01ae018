"""Checks of the example's options: device, plan, target, workers and saves.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import argparse

from keras_recompute.errors import InvalidArgumentError, TargetError, UnsupportedError
from keras_recompute.ipu import has_sdk
from keras_recompute.keras_backend import TENSORFLOW, current_backend, require
from keras_recompute.liveness.device_compilers import find_device

AUTO = "auto"
CHECKPOINTS = 7
KEPT, LENGTH, TEMPERATURE = 3, 400, 0.8


def check_workers(said_by: str, workers: int, microbatches: int) -> None:
    """Raise InvalidArgumentError if the microbatches of an update cannot be shared equally."""
    if microbatches % workers:
        raise InvalidArgumentError(
            f"{said_by}: {workers} workers cannot share the {microbatches} microbatches of an "
            "update; change their number or --gradient-accumulation"
        )


def check_device(arguments: argparse.Namespace) -> None:
    """Resolve the option of a device and its defaults. Raises InvalidArgumentError."""
    if arguments.device is None:
        return
    # The full name, whatever way the user wrote it.
    device = find_device(arguments.device)
    arguments.device, arguments.compile_only = device.name, True
    if arguments.workers or arguments.distribute:
        raise InvalidArgumentError(
            "--device: it compiles in one process; leave out --workers and --distribute"
        )
    if arguments.checkpoints == AUTO and arguments.memory_budget is None:
        arguments.memory_budget = device.memory_bytes


def check_plan(arguments: argparse.Namespace) -> None:
    """Check the options of the plan and fill in their defaults. Raises InvalidArgumentError."""
    is_auto = arguments.checkpoints == AUTO
    if arguments.sweep is not None:
        for option, given in (
            ("--checkpoints", arguments.checkpoints is not None),
            ("--no-recompute", arguments.no_recompute),
        ):
            if given:
                raise InvalidArgumentError(
                    f"{option}: --sweep chooses the plans that it compares; leave out one of the "
                    "two"
                )
    elif is_auto and arguments.memory_budget is None:
        raise InvalidArgumentError(
            "--checkpoints auto needs a budget: give --memory-budget, such as 128MiB, or --device"
        )
    elif is_auto and arguments.no_recompute:
        raise InvalidArgumentError(
            "--no-recompute: --checkpoints auto decides that by itself; leave out one of the two"
        )
    elif arguments.memory_budget is not None and not is_auto:
        raise InvalidArgumentError(
            "--memory-budget: the number of checkpoints is given; choose it by the budget with "
            "--checkpoints auto"
        )
    if arguments.checkpoints is None:
        arguments.checkpoints = CHECKPOINTS
    if not is_auto:
        arguments.levels = arguments.levels or 1
    # Each level groups at least two sections of the one below.
    most = max(arguments.seq_len.bit_length() - 1, 1)
    if (arguments.levels or 1) > most:
        raise InvalidArgumentError(
            f"--levels {arguments.levels}: {arguments.seq_len} steps can be nested in at most "
            f"{most} levels; lower it or raise --seq-len"
        )
    option, counts = (
        ("--sweep", arguments.sweep)
        if arguments.sweep
        else ("--checkpoints", [arguments.checkpoints])
    )
    for checkpoints in counts:
        if checkpoints != AUTO and checkpoints >= arguments.seq_len:
            raise InvalidArgumentError(
                f"{option} {checkpoints}: a sequence of {arguments.seq_len} steps takes at most "
                f"{arguments.seq_len - 1}; lower it or raise --seq-len"
            )


def choose_target(wanted: str) -> str:
    """Return the target to run on: on other backends than TensorFlow's, the backend.

    Raises TargetError if the backend does not support ``wanted``, and UnsupportedError if it is not
    installed.
    """
    require("Model")
    backend = current_backend()
    if backend != TENSORFLOW:
        if wanted == "auto":
            return backend
        require_option(f"--target {wanted}", "ipu")
    # The SDK replaces this Python's TensorFlow, so one environment has one of them.
    is_there = has_sdk()
    if wanted == "auto":
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


def require_option(option: str, feature: str) -> None:
    """Raise UnsupportedError if Keras's backend lacks ``feature``, which ``option`` needs."""
    try:
        require(feature)
    except UnsupportedError as error:
        raise UnsupportedError(f"{option}: {error}") from None


def check_saving(arguments: argparse.Namespace) -> None:
    """Check the options of saves and their defaults. Raises InvalidArgumentError."""
    if arguments.generate is None:
        _only_with("--generate", arguments, ("load", "length", "temperature"))
    else:
        if arguments.load is None:
            raise InvalidArgumentError(
                "--generate needs a network: give --load, the folder of --save"
            )
        if not arguments.generate:
            raise InvalidArgumentError(
                "--generate: there is no text to continue; give at least one character"
            )
        _not_with(
            "--generate",
            arguments,
            ("save", "sweep", "compile_only", "device", "workers", "distribute", "report", "json"),
        )
    if arguments.save is None:
        _only_with("--save", arguments, ("save_every", "keep", "resume"))
    else:
        _not_with("--save", arguments, ("sweep", "compile_only", "device"))
    if arguments.log is not None:
        _not_with("--log", arguments, ("generate", "sweep", "compile_only", "device"))
    if arguments.validation is not None:
        _not_with(
            "--validation",
            arguments,
            ("generate", "sweep", "compile_only", "device", "workers", "distribute"),
        )
        if arguments.data != "text":
            raise InvalidArgumentError(
                f"--validation: --data {arguments.data} has nothing to hold back; leave out one "
                "of the two"
            )
    arguments.keep = arguments.keep or KEPT
    arguments.length = arguments.length or LENGTH
    arguments.temperature = TEMPERATURE if arguments.temperature is None else arguments.temperature


def _only_with(option: str, arguments: argparse.Namespace, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise InvalidArgumentError(
                f"{_option(name)}: it needs {option}; give that too, or leave it out"
            )


def _not_with(option: str, arguments: argparse.Namespace, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise InvalidArgumentError(
                f"{_option(name)}: it cannot be combined with {option}; leave out one of the two"
            )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
