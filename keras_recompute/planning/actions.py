"""The six actions that a plan consists of, and the plan itself.

An action is a plain value that names steps. A plan lists actions in order; ``simulate`` judges it,
and an engine may carry it out. Ranges are half open: ``begin`` to ``end - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Union


@dataclass(frozen=True)
class Store:
    """Store the state in hand, the input of ``step``, as a checkpoint."""

    step: int


@dataclass(frozen=True)
class Restore:
    """Take the stored input of ``step`` in hand; it stays stored."""

    step: int


@dataclass(frozen=True)
class Free:
    """Free the stored input of ``step``; a state in hand stays in hand."""

    step: int


@dataclass(frozen=True)
class Advance:
    """Run steps forward and keep only the last state, in hand."""

    begin: int
    end: int


@dataclass(frozen=True)
class Keep:
    """Run steps forward and keep the activations of each; the last state is in hand."""

    begin: int
    end: int


@dataclass(frozen=True)
class Backward:
    """Run steps backward, last first, freeing their activations; no state is in hand afterwards."""

    begin: int
    end: int


Action = Union[Store, Restore, Free, Advance, Keep, Backward]


@dataclass(frozen=True)
class Plan:
    """The actions of one forward and backward pass over ``steps`` steps, in order.

    Plans with equal actions are equal.

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
