"""Options of the example to save, resume and sample from a network. Runs on Python 3.8."""

from __future__ import annotations

import argparse

from keras_recompute.command_line import number, path_to, whole_number
from keras_recompute.errors import InvalidArgumentError

KEPT, LENGTH, TEMPERATURE = 3, 400, 0.8
share_of_text = number("between 0 and 1", lambda found: 0 < found < 1)
temperature = number("a finite number from 0 on", lambda found: found >= 0)


def add_save_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to ``parser``."""
    saving = parser.add_argument_group("what was trained")
    saving.add_argument(
        "--save",
        type=path_to("folder"),
        metavar="DIR",
        help="folder for saves of network, optimizer, position in the data, and figures",
    )
    saving.add_argument(
        "--save-every",
        type=whole_number(1),
        metavar="N",
        help="updates between two saves (an epoch)",
    )
    saving.add_argument(
        "--keep", type=whole_number(1), metavar="N", help=f"number of saves to keep ({KEPT})"
    )
    saving.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last save in --save, to the same losses",
    )
    saving.add_argument(
        "--validation",
        type=share_of_text,
        metavar="X",
        help="share of the text, at its end, to validate on instead of training",
    )
    saving.add_argument(
        "--load",
        type=path_to("folder"),
        metavar="DIR",
        help="folder of saves whose last network --generate uses",
    )
    saving.add_argument("--generate", metavar="TEXT", help="continue this text, without training")
    saving.add_argument(
        "--length", type=whole_number(1), metavar="N", help=f"bytes to generate ({LENGTH})"
    )
    saving.add_argument(
        "--temperature",
        type=temperature,
        metavar="X",
        help=f"randomness: 0 takes the likeliest byte ({TEMPERATURE})",
    )


def check_saving(arguments: argparse.Namespace) -> None:
    """Check the options and fill in defaults. Raises InvalidArgumentError."""
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
