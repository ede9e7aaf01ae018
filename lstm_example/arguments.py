"""The command line of the example, parsed and checked before TensorFlow is loaded.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from keras_recompute.command_line import Parser, path_to, positive_number, whole_number, wrong
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.sizes import parse_bytes

from .argument_checks import (
    AUTO,
    CHECKPOINTS,
    check_device,
    check_plan,
    check_workers,
    choose_target,
)
from .save_arguments import add_save_options, check_saving

MICROBATCHES_PER_EPOCH = {"text": 40, "constant": 4}  # constant: the published 64 samples
LEARNING_RATE = {"text": 0.01, "constant": 0.001}
SWEEP = "0,1,3,7,15,31,63"
LARGEST_SEED = 2**32 - 1  # NumPy's and Keras's generators take 32 bits
WAIT_SECONDS, HEARTBEAT_SECONDS, LONGEST_SECONDS = 300, 10, 24 * 60 * 60


@dataclass(frozen=True)
class Options:
    """The options of a run, complete and checked."""

    checkpoints: int | None  # None: to be chosen within the budget
    memory_budget: int | None
    seq_len: int
    cell: str
    units: int
    features: int
    levels: int | None  # None: to be chosen
    no_recompute: bool
    data: str
    text: Path | None
    batch_size: int
    gradient_accumulation: int
    epochs: int
    steps_per_epoch: int
    learning_rate: float
    seed: int
    target: str
    workers: int | None  # processes to start
    distribute: bool  # whether this is one of several processes
    wait_seconds: int  # for the others to come
    heartbeat_seconds: int  # without a sign of life until one of them is taken for lost
    sweep: list[int] | None
    compile_only: bool
    device: str | None  # that is compiled for, if not this one
    save: Path | None
    save_every: int  # updates
    keep: int  # saves
    resume: bool
    validation: float | None  # share of the text
    load: Path | None
    generate: str | None
    length: int  # bytes to generate
    temperature: float
    report: Path | None
    json: Path | None
    log: Path | None  # of events, for TensorBoard
    force: bool
    quiet: bool

    @property
    def is_text(self) -> bool:
        """Whether the data is text, and not constant numbers."""
        return self.data == "text"

    @property
    def updates(self) -> int:
        """The number of updates of the optimiser."""
        return self.epochs * self.steps_per_epoch // self.gradient_accumulation


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
        if given and arguments.target != "xla":
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
    model = parser.add_argument_group("model")
    model.add_argument(
        "--checkpoints",
        type=checkpoints_or_auto,
        metavar="N",
        help=f"checkpoints; N + 1 sections; or auto ({CHECKPOINTS})",
    )
    model.add_argument(
        "--memory-budget",
        type=budget,
        metavar="SIZE",
        help="with auto: the largest peak memory, such as 128MiB; takes the fastest plan that fits",
    )
    model.add_argument(
        "--seq-len", type=whole_number(1), default=2048, metavar="N", help="timesteps (2048)"
    )
    model.add_argument(
        "--cell", choices=("lstm", "gru"), default="lstm", help="recurrent cell (lstm)"
    )
    model.add_argument(
        "--units", type=whole_number(1), default=256, metavar="N", help="units of the cell (256)"
    )
    model.add_argument(
        "--features",
        type=whole_number(1),
        default=512,
        metavar="N",
        help="features per timestep (512)",
    )
    model.add_argument(
        "--levels",
        type=whole_number(1),
        metavar="N",
        help="nested loops of sections (1; auto: what fits)",
    )
    model.add_argument(
        "--no-recompute", action="store_true", help="keep every activation, for comparison"
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--data", choices=("text", "constant"), default="text", help="what to learn (text)"
    )
    training.add_argument(
        "--text",
        type=path_to("file"),
        metavar="FILE",
        help="text to learn (the Python language reference)",
    )
    training.add_argument(
        "--batch-size",
        type=whole_number(1),
        default=16,
        metavar="N",
        help="sequences per microbatch (16)",
    )
    training.add_argument(
        "--gradient-accumulation",
        type=whole_number(1),
        default=4,
        metavar="N",
        help="microbatches per update (4)",
    )
    training.add_argument(
        "--epochs", type=whole_number(1), default=1, metavar="N", help="epochs (1)"
    )
    training.add_argument(
        "--steps-per-epoch",
        type=whole_number(1),
        metavar="N",
        help="microbatches per epoch (text: 40, constant: 4)",
    )
    training.add_argument(
        "--learning-rate",
        type=positive_number,
        metavar="X",
        help="learning rate (text: Adam 0.01, constant: SGD 0.001)",
    )
    training.add_argument(
        "--seed",
        type=whole_number(0, LARGEST_SEED),
        default=0,
        metavar="N",
        help="seed of weights and data (0)",
    )
    training.add_argument(
        "--target",
        choices=("auto", "xla", "ipu", "ipu-model"),
        default="auto",
        help="where to run (auto: an IPU if there is one)",
    )
    processes = parser.add_argument_group("several processes")
    processes.add_argument(
        "--workers",
        type=whole_number(1),
        metavar="N",
        help="start N processes here, which share the microbatches of each update",
    )
    processes.add_argument(
        "--distribute",
        choices=(AUTO,),
        help="join the cluster that TF_CONFIG, Slurm or Kubernetes describes",
    )
    seconds = whole_number(1, LONGEST_SECONDS)
    processes.add_argument(
        "--wait-seconds",
        type=seconds,
        metavar="N",
        help=f"longest wait for the other workers to connect ({WAIT_SECONDS})",
    )
    processes.add_argument(
        "--heartbeat-seconds",
        type=seconds,
        metavar="N",
        help=f"silence after which a worker counts as lost ({HEARTBEAT_SECONDS})",
    )
    several = parser.add_argument_group("several plans")
    several.add_argument(
        "--sweep",
        type=numbers_of_checkpoints,
        nargs="?",
        const=SWEEP,
        metavar="N,N",
        help=f"compare these numbers of checkpoints, and no recomputation ({SWEEP})",
    )
    several.add_argument(
        "--compile-only", action="store_true", help="compile and report, without training"
    )
    several.add_argument(
        "--device",
        metavar="NAME",
        help="only compile, for a GPU or TPU that need not be here, such as h100 or v5e; its "
        "memory is the budget",
    )
    add_save_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--report",
        type=path_to("folder"),
        metavar="DIR",
        help="write liveness.json and liveness.png there (sweep: sweep.json, .png, .txt)",
    )
    output.add_argument(
        "--json", type=path_to("file"), metavar="FILE", help="write all figures there"
    )
    output.add_argument(
        "--log",
        type=path_to("folder"),
        metavar="DIR",
        help="write figures of each update, for TensorBoard",
    )
    output.add_argument("--force", action="store_true", help="overwrite existing files")
    output.add_argument("--quiet", action="store_true", help="print only the last lines")
    return parser
