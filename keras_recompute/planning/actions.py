"""The vocabulary of plans: six actions, plain values that name steps and nothing else.

A plan says what to do in which order; ``simulate`` judges it, an engine may carry it out. Ranges
are half open: ``begin`` to ``end - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Union


@dataclass(frozen=True)
class Store:
    """Put the state in hand, the input of ``step``, into memory as a checkpoint."""

    step: int


@dataclass(frozen=True)
class Restore:
    """Take the stored input of ``step`` in hand; it stays stored."""

    step: int


@dataclass(frozen=True)
class Free:
    """Drop the stored input of ``step`` from memory; a state in hand stays in hand."""

    step: int


@dataclass(frozen=True)
class Advance:
    """Run the steps forward and keep nothing but the last state, in hand."""

    begin: int
    end: int


@dataclass(frozen=True)
class Keep:
    """Run the steps forward and keep the activations of each; the last state is in hand."""

    begin: int
    end: int


@dataclass(frozen=True)
class Backward:
    """Run the steps backward, last first; each drops its activations. No state is in hand
    afterwards.
    """

    begin: int
    end: int


Action = Union[Store, Restore, Free, Advance, Keep, Backward]


@dataclass(frozen=True)
class Plan:
    """A complete order of work for a chain of ``steps`` steps; two plans with the same actions are
    equal.

    Examples:
        >>> plan = kr.planning.uniform_plan(4, checkpoints=1)
        >>> for action in plan:
        ...     print(action)
        Store(step=0)
        Advance(begin=0, end=2)
        Keep(begin=2, end=4)
        Backward(begin=2, end=4)
        Restore(step=0)
        Free(step=0)
        Keep(begin=0, end=2)
        Backward(begin=0, end=2)
    """

    steps: int
    actions: tuple[Action, ...]
    planner: str = field(default="by hand", compare=False)

    def __iter__(self) -> Iterator[Action]:
        return iter(self.actions)

    def __len__(self) -> int:
        return len(self.actions)
