"""The records of an inspected function, the same on every backend of Keras.

``Residual`` is a value that stays in memory between forward and backward pass. ``ForwardBackward``
holds the two programs as texts.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ...user_code import Source
from ..policies import Decision


@dataclass(frozen=True)
class Residual:
    """One value that the backward pass reads.

    Attributes:
        dtype: The type of its elements, such as ``float32``.
        shape: Its dimensions; None where they are not known before the program runs.
        bytes: Its size; None where that is not known before the program runs.
        kind: ``argument``, ``variable``, ``captured tensor``, ``operation`` or ``name``.
        origin: Which one: a path such as ``params[0]``, a variable's name, an operation's type, or
            a name given by ``checkpoint_name``.
        source: The line of the user's code that made it, if there is one.
        decision: What becomes of it.
        layer: On JAX and PyTorch, the layers in which it was made, such as ``block/dense``.
    """

    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int | None
    kind: str
    origin: str
    source: Source | None
    decision: Decision
    layer: str = ""

    def __str__(self) -> str:
        made = {"operation": f"output of {self.origin}", "name": f"named {self.origin!r}"}.get(
            self.kind
        )
        text = made or f"from the {self.kind} {self.origin}".rstrip()
        layer = f" in {self.layer}" if self.layer else ""
        where = f" from {self.source}" if self.source else ""
        how = {
            Decision.OFFLOAD: ", offloaded",
            Decision.RECOMPUTE: ", recomputed",
            Decision.SAVE: "",
        }[self.decision]
        return f"{type_text(self.dtype, self.shape)} {text}{layer}{where}{how}"


@dataclass(frozen=True)
class Value:
    """A value of a program's text: its letter, its type, and for an input what it is."""

    letter: str
    type: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.letter}: {self.type}" + (f"  # {self.origin}" if self.origin else "")


@dataclass(frozen=True)
class Equation:
    """``results = operation(operands)``; ``replayed`` if it repeats a forward operation."""

    results: tuple[Value, ...]
    operation: str
    operands: tuple[str, ...]
    replayed: bool

    def __str__(self) -> str:
        left = ", ".join(f"{value.letter}: {value.type}" for value in self.results)
        return f"{left or '_'} = {self.operation} {' '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class ProgramText:
    """A program as text: inputs, equations in running order, letters of the outputs."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        lines = list(map("in   {}".format, self.inputs))
        lines += map("     {}".format, self.equations)
        return "\n".join([*lines, f"out  {' '.join(self.outputs)}"])


@dataclass(frozen=True)
class ForwardBackward:
    """The two programs of a function."""

    forward: ProgramText
    backward: ProgramText

    def print(self) -> None:
        """Print both side by side, with what is replayed in colour."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold green")
        table.add_column("forward computation:")
        table.add_column("backward computation:")
        cells = []
        for program in (self.forward, self.backward):
            replayed = {f"     {equation}" for equation in program.equations if equation.replayed}
            lines = [
                Text(line, style="yellow" if line in replayed else "")
                for line in str(program).splitlines()
            ]
            cells.append(Text("\n").join(lines))
        table.add_row(*cells)
        Console().print(table)


class Letters:
    """Gives letters to values in the order of their use: a, b, ..., z, ba, bb, ...

    ``key_of`` returns the identity of a value.
    """

    def __init__(self, key_of: Callable[[Any], Hashable]) -> None:
        self._key_of = key_of
        self._of: dict[Hashable, str] = {}
        self._count = 0

    def __call__(self, value: Any) -> str:
        key = self._key_of(value)
        if key not in self._of:
            self._of[key] = letter(self._count)
            self._count += 1
        return self._of[key]

    def write_as(self, value: Any, text: str) -> None:
        """Write ``value`` as ``text``."""
        self._of[self._key_of(value)] = text


def letter(number: int) -> str:
    """Return the name of a value by its number: a, b, ..., z, ba, bb, ..."""
    text = ""
    while number or not text:
        number, digit = divmod(number, 26)
        text = string.ascii_lowercase[digit] + text
    return text


def constant_text(value: Any, name: str = "") -> str:
    """Return a constant array as its elements where these are few, and by its name otherwise."""
    if value is not None and value.size <= 4:
        return str(value.tolist()).replace(" ", "")
    return f"<constant {name}>" if name else "<constant>"


def type_text(dtype: str, shape: tuple[int | None, ...] | None) -> str:
    """Return a type as ``float32[5,4]``; ``?`` for an unknown dimension, ``...`` for a shape."""
    sizes = "..." if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    return f"{dtype}[{sizes}]"


def no_result_text(name: str, dtypes: list[str]) -> str:
    """Return the message for a function none of whose results has a gradient."""
    types = ", ".join(sorted(set(dtypes)))
    return (
        f"{name!r} returns only {types or 'values that are no tensors'}, which have no gradient: "
        "return a floating-point tensor"
    )


def no_input_text(name: str, inputs: list[tuple[str, str]], example: str) -> str:
    """Return the message for a function none of whose inputs, a name and a type, has a gradient.

    ``example`` is an argument that has one.
    """
    found = ", ".join(f"{path} is {dtype}" for path, dtype in inputs) or "it takes no tensor"
    return (
        f"{name!r} has no input with a gradient: {found}, and it reads no variable. Integers "
        f"and Python numbers have none: pass a floating-point tensor, such as {example}."
    )
