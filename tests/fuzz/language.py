"""Programs as data: a list of instructions over a growing list of values, small enough to be read
and to be shrunk.

A value is named by how far back it was made: 0 is the latest. Numbers wrap around, so every list of
instructions is a program. The body of a loop, branch or call sees all values made before it, then
its argument; its last value is its result. All values broadcast with each other: they are matrices
(rows, width), rows, columns and scalars.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union


@dataclass(frozen=True)
class Apply:
    """A function of one value, element by element or along its last axis."""

    function: str
    of: int = 0


@dataclass(frozen=True)
class Combine:
    """A function of two values that broadcast."""

    function: str
    of: int = 0
    other: int = 0


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant, a variable or another value."""

    factor: str
    of: int = 0
    other: int = 0


@dataclass(frozen=True)
class Reduce:
    """A reduction along ``rows`` (leaves a row), ``columns`` (leaves a column) or ``all`` (leaves a
    scalar).
    """

    function: str
    along: str
    of: int = 0


@dataclass(frozen=True)
class Move:
    """Elements put elsewhere: reshaped, sliced, gathered, scattered."""

    function: str
    of: int = 0


@dataclass(frozen=True)
class Read:
    """A variable, read as a whole or in part."""

    how: str


@dataclass(frozen=True)
class Assign:
    """A variable changed by the program, by a number made from a value."""

    how: str
    of: int = 0


@dataclass(frozen=True)
class Outside:
    """A tensor that the program closes over."""


@dataclass(frozen=True)
class Loop:
    """A loop of one of TensorFlow's kinds around a body."""

    kind: str
    body: Steps
    of: int = 0


@dataclass(frozen=True)
class Branch:
    """``tf.cond`` on a predicate that is far from a tie."""

    predicate: str
    then: Steps
    otherwise: Steps
    of: int = 0


@dataclass(frozen=True)
class Switch:
    """``tf.switch_case`` on the integer argument."""

    branches: tuple[Steps, ...]
    of: int = 0


@dataclass(frozen=True)
class Call:
    """A nested ``tf.function``: a ``fresh`` one, one that XLA compiles, or one that plain code has
    called before (shared).
    """

    kind: str
    body: Steps
    times: int = 1
    of: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A nested checkpoint, which returns its last values, and maybe an integer."""

    policy: str
    body: Steps
    returns: int = 1
    integer: bool = False
    of: int = 0


@dataclass(frozen=True)
class Derive:
    """The gradient of the sum of what a body returns, by a tape inside the program."""

    body: Steps
    of: int = 0


@dataclass(frozen=True)
class Scope:
    """A recompute_scope or keep_scope around a body."""

    kind: str
    body: Steps
    of: int = 0


@dataclass(frozen=True)
class Name:
    """A value marked for policies that go by name."""

    name: str
    of: int = 0


@dataclass(frozen=True)
class Custom:
    """A function whose gradient is written by hand."""

    kind: str
    of: int = 0
    other: int = 0


@dataclass(frozen=True)
class Draw:
    """A value times a random mask."""

    source: str
    of: int = 0


@dataclass(frozen=True)
class Fail:
    """Something that raises, in Python, while the graph is built, or when it runs."""

    kind: str
    of: int = 0


Simple = Union[
    Apply, Combine, Product, Reduce, Move, Read, Assign, Outside, Name, Custom, Draw, Fail
]
Step = Union[Simple, Loop, Branch, Switch, Call, Checkpoint, Derive, Scope]
Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """A function of two matrices and an integer.

    Without a policy only the checkpoints inside are checkpoints.

    It returns its last values: one as it is, several as a tuple, ``nested`` as a dictionary with an
    integer and None.
    """

    body: Steps
    policy: str | None = "save_nothing"
    returns: int = 1
    nested: bool = False
    arguments: str = "positional"

    def __str__(self) -> str:
        around = "no checkpoint around it"
        if self.policy is not None:
            around = f"checkpoint, policy {self.policy}"
        returned = f"{'nest of ' if self.nested else ''}the last {self.returns}"
        tail = f"  return {returned}, {self.arguments} arguments"
        return "\n".join([f"program, {around}:", *_lines(self.body, "  "), tail])


def bodies(step: Step) -> tuple[Steps, ...]:
    """Return the bodies of ``step``."""
    if isinstance(step, Branch):
        return step.then, step.otherwise
    return (
        step.branches if isinstance(step, Switch) else (step.body,) if hasattr(step, "body") else ()
    )


def walk(steps: Steps) -> Iterator[Step]:
    """Yield all instructions of ``steps``, and those in their bodies."""
    for step in steps:
        yield step
        for body in bodies(step):
            yield from walk(body)


def names_marked(steps: Steps) -> set[str]:
    """Return the names that a function of ``steps`` marks where a policy sees them: not in the
    bodies of loops and calls.
    """
    found = {step.name for step in steps if isinstance(step, Name)}
    return found.union(*(names_marked(step.body) for step in steps if isinstance(step, Scope)))


def _lines(steps: Steps, indent: str) -> Iterator[str]:
    for step in steps:
        fields = [(f.name, getattr(step, f.name)) for f in dataclasses.fields(step)]
        shown = [_shown(name, value) for name, value in fields if not isinstance(value, tuple)]
        yield f"{indent}{type(step).__name__.lower()} {', '.join(filter(None, shown))}".rstrip()
        for number, body in enumerate(bodies(step)):
            if number:
                yield f"{indent}or"
            yield from _lines(body, indent + "  ")


def _shown(name: str, value: Any) -> str:
    if name in ("of", "other"):
        return f"{name} {'the latest' if value == 0 else f'{value} before'}"
    return str(value) if isinstance(value, str) else f"{name} {value}"
