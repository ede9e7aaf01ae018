"""The command line of the example, parsed and checked before TensorFlow is loaded.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Sequence

from keras_recompute.command_line import (
    Parser,
    number,
    path_to,
    positive_number,
    whole_number,
    wrong,
)
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.sizes import parse_bytes

from .argument_checks import (
    AUTO,
    CHECKPOINTS,
    KEPT,
    LENGTH,
    TEMPERATURE,
    check_device,
    check_plan,
    check_saving,
    check_workers,
    choose_target,
    require_option,
)

MICROBATCHES_PER_EPOCH = {"text": 40, "constant": 4}  # constant: the published 64 samples
LEARNING_RATE = {"text": 0.01, "constant": 0.001}
SWEEP = "0,1,3,7,15,31,63"
LARGEST_SEED = 2**32 - 1  # NumPy's and Keras's generators take 32 bits
WAIT_SECONDS, HEARTBEAT_SECONDS, LONGEST_SECONDS = 300, 10, 24 * 60 * 60


def checkpoints_or_auto(text: str) -> int | str:
    """Convert to a number of checkpoints; "auto" stays."""
    return AUTO if text == AUTO else whole_number(0)(text)


def numbers_of_checkpoints(text: str) -> list[int]:
    """Convert "0,1,3" to the sorted distinct numbers."""
    return sorted({whole_number(0)(part) for part in text.split(",")})


def budget(text: str) -> int:
    """Convert a size such as "128MiB" to bytes, at least one."""
    try:
        count = parse_bytes(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not count:
        raise wrong(text, "is no memory: give at least one byte")
    return count


_count, _seconds = whole_number(1), whole_number(1, LONGEST_SECONDS)
_file, _folder = path_to("file"), path_to("folder")
_share = number("between 0 and 1", lambda found: 0 < found < 1)
_temperature = number("a finite number from 0 on", lambda found: found >= 0)


def _option(
    text: str,
    convert: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    *,
    group: str | None = None,
    **more: Any,
) -> Any:
    """Return a field that is an option of the command line, with ``text`` as its help.

    ``group`` is the heading above it; without one it stands below the option before it.
    """
    argument = {"help": text, **more}
    if convert is not None:
        argument.update(type=convert, metavar=metavar)
    return field(metadata={"argument": argument, "group": group})


def _flag(text: str) -> Any:
    return _option(text, action="store_true")


@dataclass(frozen=True)
class Options:
    """The options of a run, complete and checked, in the order of the help."""

    # None: to be chosen within the budget
    checkpoints: int | None = _option(
        f"checkpoints; N + 1 sections; or auto ({CHECKPOINTS})",
        checkpoints_or_auto,
        "N",
        group="model",
    )
    memory_budget: int | None = _option(
        "with auto: the largest peak memory, such as 128MiB; takes the fastest plan that fits",
        budget,
        "SIZE",
    )
    seq_len: int = _option("timesteps (2048)", _count, "N", default=2048)
    cell: str = _option("recurrent cell (lstm)", choices=("lstm", "gru"), default="lstm")
    units: int = _option("units of the cell (256)", _count, "N", default=256)
    features: int = _option("features per timestep (512)", _count, "N", default=512)
    # None: to be chosen
    levels: int | None = _option("nested loops of sections (1; auto: what fits)", _count, "N")
    no_recompute: bool = _flag("keep every activation, for comparison")
    data: str = _option(
        "what to learn (text)", group="training", choices=("text", "constant"), default="text"
    )
    text: Path | None = _option("text to learn (the Python language reference)", _file, "FILE")
    batch_size: int = _option("sequences per microbatch (16)", _count, "N", default=16)
    gradient_accumulation: int = _option("microbatches per update (4)", _count, "N", default=4)
    epochs: int = _option("epochs (1)", _count, "N", default=1)
    steps_per_epoch: int = _option("microbatches per epoch (text: 40, constant: 4)", _count, "N")
    learning_rate: float = _option(
        "learning rate (text: Adam 0.01, constant: SGD 0.001)", positive_number, "X"
    )
    seed: int = _option(
        "seed of weights and data (0)", whole_number(0, LARGEST_SEED), "N", default=0
    )
    target: str = _option(
        "where to run (auto: an IPU if there is one)",
        choices=("auto", "xla", "ipu", "ipu-model"),
        default="auto",
    )
    workers: int | None = _option(
        "start N processes here, which share the microbatches of each update",
        _count,
        "N",
        group="several processes",
    )
    # Whether this is one of several processes
    distribute: bool = _option(
        "join the cluster that TF_CONFIG, Slurm or Kubernetes describes", choices=(AUTO,)
    )
    wait_seconds: int = _option(
        f"longest wait for the other workers to connect ({WAIT_SECONDS})", _seconds, "N"
    )
    heartbeat_seconds: int = _option(
        f"silence after which a worker counts as lost ({HEARTBEAT_SECONDS})", _seconds, "N"
    )
    sweep: list[int] | None = _option(
        f"compare these numbers of checkpoints, and no recomputation ({SWEEP})",
        numbers_of_checkpoints,
        "N,N",
        group="several plans",
        nargs="?",
        const=SWEEP,
    )
    compile_only: bool = _flag("compile and report, without training")
    device: str | None = _option(
        "only compile, for a GPU or TPU that need not be here, such as h100 or v5e; its memory is "
        "the budget",
        str,
        "NAME",
    )
    save: Path | None = _option(
        "folder for saves of network, optimizer, position in the data, and figures",
        _folder,
        "DIR",
        group="what was trained",
    )
    save_every: int = _option("updates between two saves (an epoch)", _count, "N")
    keep: int = _option(f"number of saves to keep ({KEPT})", _count, "N")
    resume: bool = _flag("continue from the last save in --save, to the same losses")
    validation: float | None = _option(
        "share of the text, at its end, to validate on instead of training", _share, "X"
    )
    load: Path | None = _option(
        "folder of saves whose last network --generate uses", _folder, "DIR"
    )
    generate: str | None = _option("continue this text, without training", str, "TEXT")
    length: int = _option(f"bytes to generate ({LENGTH})", _count, "N")
    temperature: float = _option(
        f"randomness: 0 takes the likeliest byte ({TEMPERATURE})", _temperature, "X"
    )
    report: Path | None = _option(
        "write liveness.json and liveness.png there (sweep: sweep.json, .png, .txt)",
        _folder,
        "DIR",
        group="output",
    )
    json: Path | None = _option("write all figures there", _file, "FILE")
    log: Path | None = _option("write figures of each update, for TensorBoard", _folder, "DIR")
    force: bool = _flag("overwrite existing files")
    quiet: bool = _flag("print only the last lines")

    @property
    def is_text(self) -> bool:
        """Whether the data is text, and not constant numbers."""
        return self.data == "text"

    @property
    def is_for_ipu(self) -> bool:
        """Whether an IPU or its simulator runs it, and the Poplar SDK compiles it."""
        return self.target.startswith("ipu")

    @property
    def updates(self) -> int:
        """The number of updates of the optimiser."""
        return self.epochs * self.steps_per_epoch // self.gradient_accumulation


def parse_arguments(argv: Sequence[str] | None, documentation: str) -> Options:
    """Return the options, checked as far as possible without TensorFlow.

    ``documentation`` becomes the help. Raises InvalidArgumentError, or TargetError if the Poplar
    SDK is asked for and not installed.
    """
    arguments = _parser(documentation).parse_args(argv)

    check_saving(arguments)
    check_device(arguments)
    check_plan(arguments)
    arguments.steps_per_epoch = arguments.steps_per_epoch or MICROBATCHES_PER_EPOCH[arguments.data]
    arguments.learning_rate = arguments.learning_rate or LEARNING_RATE[arguments.data]
    # An update would otherwise span two epochs.
    if arguments.steps_per_epoch % arguments.gradient_accumulation:
        raise InvalidArgumentError(
            f"--gradient-accumulation {arguments.gradient_accumulation} does not divide the "
            f"{arguments.steps_per_epoch} microbatches of an epoch; change it or --steps-per-epoch"
        )
    if arguments.text and arguments.data != "text":
        raise InvalidArgumentError(
            f"--text {arguments.text}: --data {arguments.data} uses no text; leave out one of the "
            "two"
        )
    # By default a save at the end of each epoch.
    arguments.save_every = (
        arguments.save_every or arguments.steps_per_epoch // arguments.gradient_accumulation
    )
    arguments.target = choose_target(arguments.target)
    if arguments.workers and arguments.distribute:
        raise InvalidArgumentError(
            "--workers starts a cluster and --distribute joins one: leave out one of the two"
        )
    if arguments.sweep is not None and (arguments.workers or arguments.distribute):
        raise InvalidArgumentError(
            "--sweep: it compares plans in one process; leave out --workers and --distribute"
        )
    check_workers("--workers", arguments.workers or 1, arguments.gradient_accumulation)
    for option, seconds in (
        ("--wait-seconds", arguments.wait_seconds),
        ("--heartbeat-seconds", arguments.heartbeat_seconds),
    ):
        if seconds and not (arguments.workers or arguments.distribute):
            raise InvalidArgumentError(
                f"{option}: it is for several processes; leave it out or give --workers or "
                "--distribute"
            )
    arguments.wait_seconds = arguments.wait_seconds or WAIT_SECONDS
    arguments.heartbeat_seconds = arguments.heartbeat_seconds or HEARTBEAT_SECONDS
    arguments.distribute = bool(arguments.distribute)
    for option, given, feature in (
        ("--workers", arguments.workers, "distribute"),
        ("--distribute", arguments.distribute, "distribute"),
        ("--levels", (arguments.levels or 1) > 1, "Model.recomputation_levels"),
    ):
        if given:
            require_option(option, feature)
    for option, given in (
        ("--workers", arguments.workers),
        ("--distribute", arguments.distribute),
        ("--levels", (arguments.levels or 1) > 1),
        ("--checkpoints auto", arguments.checkpoints == AUTO),
        ("--sweep", arguments.sweep is not None),
        ("--device", arguments.device),
        ("--save", arguments.save),
        ("--validation", arguments.validation),
        ("--generate", arguments.generate),
        ("--log", arguments.log),
        ("--compile-only", arguments.compile_only),
    ):
        if given and arguments.target.startswith("ipu"):
            raise InvalidArgumentError(
                f"{option}: only --target xla supports it, and this is {arguments.target}; leave "
                "it out"
            )
    if arguments.checkpoints == AUTO:
        arguments.checkpoints = None
    return Options(**vars(arguments))


def _parser(documentation: str) -> Parser:
    summary, _, details = documentation.partition("\n\n")
    parser = Parser(
        prog="recompute_lstm.py",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group: Any = None
    for option in fields(Options):
        if option.metadata["group"]:
            group = parser.add_argument_group(option.metadata["group"])
        name = option.name.replace("_", "-")
        group.add_argument(f"--{name}", **option.metadata["argument"])
    return parser
