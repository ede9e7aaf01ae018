"""The options of the example, each declared once: its name, type, help and default.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from keras_recompute.command_line import (
    number,
    path_to,
    positive_number,
    whole_number,
    wrong,
)
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.sizes import parse_bytes

SWEEP = "0,1,3,7,15,31,63"
LARGEST_SEED = 2**32 - 1  # NumPy's and Keras's generators take 32 bits
AUTO = "auto"
DAY_SECONDS = 24 * 60 * 60


def checkpoints_or_auto(text: str) -> int | None:
    """Convert to a number of checkpoints; "auto" to None."""
    return None if text == AUTO else whole_number(0)(text)


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


_seconds = whole_number(1, DAY_SECONDS)
_share = number("between 0 and 1", lambda found: 0 < found < 1)
_temperature = number("a finite number from 0 on", lambda found: found >= 0)


def _option(
    text: str,
    convert: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    *,
    default: Any = None,
    group: str | None = None,
    **more: Any,
) -> Any:
    """Return a field that is an option of the command line, with ``text`` as its help.

    ``group`` is the heading above it; without one it stands below the option before it.
    """
    # A text that ends in brackets says more of the default.
    shown = "" if default is None or text.endswith(")") else f" ({default})"
    argument = {"help": text + shown, **more}
    if convert is not None:
        argument.update(type=convert, metavar=metavar)
    return field(default=default, metadata={"argument": argument, "group": group})


def _count(text: str, default: int | None = None, **more: Any) -> Any:
    return _option(text, whole_number(1), "N", default=default, **more)


def _file(text: str) -> Any:
    return _option(text, path_to("file"), "FILE")


def _folder(text: str, **more: Any) -> Any:
    return _option(text, path_to("folder"), "DIR", **more)


def _flag(text: str) -> Any:
    return field(default=False, metadata={"argument": {"help": text, "action": "store_true"}})


@dataclass(frozen=True)
class Options:
    """The options of a run, complete and checked, in the order of the help."""

    # None: to be chosen within the budget
    checkpoints: int | None = _option(
        "checkpoints; N + 1 sections; or auto", checkpoints_or_auto, "N", default=7, group="model"
    )
    memory_budget: int | None = _option(
        "with auto: the largest peak memory, such as 128MiB; takes the fastest plan that fits",
        budget,
        "SIZE",
    )
    seq_len: int = _count("timesteps", 2048)
    cell: str = _option("recurrent cell", choices=("lstm", "gru"), default="lstm")
    units: int = _count("units of the cell", 256)
    features: int = _count("features per timestep", 512)
    # None: to be chosen
    levels: int | None = _count("nested loops of sections (1; auto: what fits)")
    no_recompute: bool = _flag("keep every activation, for comparison")
    data: str = _option(
        "what to learn", choices=("text", "constant"), default="text", group="training"
    )
    text: Path | None = _file("text to learn (the Python language reference)")
    batch_size: int = _count("sequences per microbatch", 16)
    gradient_accumulation: int = _count("microbatches per update", 4)
    epochs: int = _count("epochs", 1)
    steps_per_epoch: int = _count("microbatches per epoch (text: 40, constant: 4)")
    learning_rate: float = _option(
        "learning rate (text: Adam 0.01, constant: SGD 0.001)", positive_number, "X"
    )
    seed: int = _option("seed of weights and data", whole_number(0, LARGEST_SEED), "N", default=0)
    target: str = _option(
        "where to run (auto: an IPU if there is one)",
        choices=(AUTO, "xla", "ipu", "ipu-model"),
        default=AUTO,
    )
    workers: int | None = _count(
        "start N processes here, which share the microbatches of each update",
        group="several processes",
    )
    # Given where this is one of several processes
    distribute: str | None = _option(
        "join the cluster that TF_CONFIG, Slurm or Kubernetes describes", choices=(AUTO,)
    )
    wait_seconds: int = _option(
        "longest wait for the other workers to connect", _seconds, "N", default=300
    )
    heartbeat_seconds: int = _option(
        "silence after which a worker counts as lost", _seconds, "N", default=10
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
    save: Path | None = _folder(
        "folder for saves of network, optimizer, position in the data, and figures",
        group="what was trained",
    )
    save_every: int = _count("updates between two saves (an epoch)")
    keep: int = _count("number of saves to keep", 3)
    resume: bool = _flag("continue from the last save in --save, to the same losses")
    validation: float | None = _option(
        "share of the text, at its end, to validate on instead of training", _share, "X"
    )
    load: Path | None = _folder("folder of saves whose last network --generate uses")
    generate: str | None = _option("continue this text, without training", str, "TEXT")
    length: int = _count("bytes to generate", 400)
    temperature: float = _option(
        "randomness: 0 takes the likeliest byte", _temperature, "X", default=0.8
    )
    report: Path | None = _folder(
        "write liveness.json and liveness.png there (sweep: sweep.json, .png, .txt)",
        group="output",
    )
    json: Path | None = _file("write all figures there")
    log: Path | None = _folder("write figures of each update, for TensorBoard")
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
