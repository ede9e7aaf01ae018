"""The chain: sizes and costs of a network's steps, which are all that a planner knows of it.

Step ``i`` turns state ``i`` into state ``i + 1``. Its backward pass needs its activations.

* ``state_bytes[i]``: state ``i``, the input of step ``i``, which a checkpoint there stores. State 0
  is the input of the chain; it counts 0 bytes where it is alive in any case.
* ``activation_bytes[i]``: all that the backward pass of step ``i`` needs, its input included.
  Activations serve that backward pass only; a replay starts from a stored state.
* ``working_bytes[i]``: alive only while step ``i`` runs, forward or backward: the state in hand,
  the incoming gradient, scratch memory.
* ``fixed_bytes``: alive whatever the plan: weights, optimiser, inputs.

Not modelled: skip connections, transfers to another memory, and concurrent steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Sequence

from ..errors import InvalidArgumentError


@dataclass(frozen=True)
class Chain:
    """Sizes in bytes and costs in seconds, or any one unit, of each step; compares by value.

    Args:
        state_bytes: Per step, its input, which a checkpoint there stores; 0 if alive anyway.
        activation_bytes: Per step, all that its backward pass needs, its input included.
        forward_seconds: Per step, the cost of its forward pass.
        backward_seconds: Per step, the cost of its backward pass.
        working_bytes: Per step, what is alive only while it runs; 0 by default.
        fixed_bytes: Alive whatever the plan: weights, optimiser, inputs.

    Raises:
        InvalidArgumentError: The sequences differ in length, an entry is negative, or bytes are not
            whole numbers.

    Examples:
        >>> chain = kr.planning.Chain(
        ...     state_bytes=[0, 8, 4],
        ...     activation_bytes=[20, 40, 10],
        ...     forward_seconds=[1, 2, 1],
        ...     backward_seconds=[2, 4, 2],
        ... )
        >>> len(chain), chain.plain_peak_bytes, chain.plain_seconds
        (3, 70, 12)
    """

    state_bytes: Sequence[int]
    activation_bytes: Sequence[int]
    forward_seconds: Sequence[float]
    backward_seconds: Sequence[float]
    working_bytes: Sequence[int] = ()
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        steps = len(self.state_bytes)
        if not steps:
            raise InvalidArgumentError(
                "state_bytes is empty, and a chain needs at least one step: give one entry per step"
            )
        if not len(self.working_bytes):
            object.__setattr__(self, "working_bytes", (0,) * steps)
        for name in (
            "state_bytes",
            "activation_bytes",
            "working_bytes",
            "forward_seconds",
            "backward_seconds",
        ):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if len(values) != steps:
                raise InvalidArgumentError(
                    f"{name} has {len(values)} entries but state_bytes has {steps}: give one entry "
                    "per step to both"
                )
            for step, value in enumerate(values):
                _check_amount(f"{name}[{step}]", value, whole=name.endswith("bytes"))
        _check_amount("fixed_bytes", self.fixed_bytes, whole=True)

    @classmethod
    def homogeneous(
        cls,
        steps: int,
        *,
        state_bytes: int,
        activation_bytes: int,
        forward_seconds: float = 1,
        backward_seconds: float = 2,
        working_bytes: int = 0,
        fixed_bytes: int = 0,
    ) -> Chain:
        """Return a chain of ``steps`` equal steps, such as the timesteps of a recurrent layer.

        Costs are in seconds or any one unit. By default a backward pass costs two forward passes.

        Raises:
            InvalidArgumentError: As the class, and for fewer than one step.

        Examples:
            >>> chain = kr.planning.Chain.homogeneous(100, state_bytes=1, activation_bytes=5)
            >>> chain.plain_peak_bytes
            500
        """
        check_count("steps", steps, at_least=1)
        return cls(
            state_bytes=(state_bytes,) * steps,
            activation_bytes=(activation_bytes,) * steps,
            forward_seconds=(forward_seconds,) * steps,
            backward_seconds=(backward_seconds,) * steps,
            working_bytes=(working_bytes,) * steps,
            fixed_bytes=fixed_bytes,
        )

    def __len__(self) -> int:
        return len(self.state_bytes)

    @property
    def is_homogeneous(self) -> bool:
        """Whether all steps are equal in every size and cost."""
        rows = (
            self.state_bytes,
            self.activation_bytes,
            self.forward_seconds,
            self.backward_seconds,
            self.working_bytes,
        )
        return all(row.count(row[0]) == len(row) for row in rows)

    @property
    def plain_seconds(self) -> float:
        """Seconds of one forward and one backward pass without replay, the least of any plan."""
        return sum(self.forward_seconds) + sum(self.backward_seconds)

    @property
    def plain_peak_bytes(self) -> int:
        """Peak bytes when every activation is kept and nothing is run twice."""
        alive = accumulate(self.activation_bytes)
        return self.fixed_bytes + max(
            held + working for held, working in zip(alive, self.working_bytes)
        )


def check_count(name: str, value: object, *, at_least: int) -> None:
    """Raise InvalidArgumentError unless ``value`` is a whole number of at least ``at_least``."""
    # bool is a subclass of int, but True counts nothing.
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidArgumentError(
            f"{name} is {value!r}: give a whole number of at least {at_least}"
        )


def _check_amount(name: str, value: object, *, whole: bool) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < float("inf"):
        kind = "whole number of bytes" if whole else "finite number"
        raise InvalidArgumentError(f"{name} is {value!r}: give a {kind}, zero or more")
