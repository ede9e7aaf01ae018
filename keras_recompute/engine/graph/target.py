"""The target of a program: the compiler that runs it, as a value that each step passes on.

The steps (trace, join, partition, check, lower) are right for every target without any pass, only
with more memory or time. They know neither the passes nor the compiler's name. At a few points they
apply the passes that the target has for that point. ``passes`` lists them, and says when a target
is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The points at which passes are applied. For each: what a pass is given, and what it returns.
POINTS = {
    "traced": "nothing: a context manager, in which a traced function writes the same otherwise",
    "joined": "the operations that differentiation added to a trace, the gradients that come in, "
    "the wanted gradients, target: orders the operations in place",
    "policy": "residuals, references to available tensors: the policy where none is given",
    "backward": "a program, its joint graph: the stages in its place",
    "prologue": "the same, where there is a fence; the first stage may stand before that",
    "operation": "an operation of a program: a function of its inputs that replaces it, or None",
    "copied": "an operation of a program, its copy: completes the copy",
    "fence": "the arguments of ``target_ops.fenced``: the results, computed late",
    "delay": "tensors, tensors that come before them: the former, computed late",
    "completion": "tensors: a scalar that depends on all of their elements, or None",
    "zeros": "a shape, a type: zeros, or None",
    "slice": "a tensor from outside of a loop's body, axis, begin, length, target: its slice, or "
    "None",
    "stack_gradient": "tensors that a loop takes a share of in each turn, their gradients, target: "
    "the gradients",
    "body": "a function that writes operations: one that writes them with less beside them",
}


@dataclass(frozen=True)
class Pass:
    """One pass: ``apply`` is called at ``point`` for the targets ``on``.

    ``on`` names compilers, or backends of a compiler. ``notes`` is the file in benchmarks/notes
    that says what was expected of it, and what it brought.
    """

    name: str
    point: str
    apply: Callable[..., Any]
    on: tuple[str, ...]
    does: str
    notes: str


@dataclass(frozen=True)
class Target:
    """A compiler, ``tensorflow`` (operation by operation) or ``xla``, and the passes for it.

    * ``knows_shapes``: every shape is known before the program runs, but not that of a value which
      was stored and read again.
    * ``updates_in_place``: a loop writes into an array without copying it.
    * ``has_one_memory``: values cannot be moved to a host.
    * ``holds_around_loops``: around a loop more memory is held outside of a branch than in one, and
      a tie copies what the loop has stored.
    * ``updates_early``: updates of weights run as soon as they can, without being ordered.
    * ``starts_early``: so does all other work, and copies need to be told what to wait for.
    """

    compiler: str = "tensorflow"
    passes: tuple[Pass, ...] = ()
    knows_shapes: bool = False
    updates_in_place: bool = False
    has_one_memory: bool = False
    holds_around_loops: bool = False
    updates_early: bool = False
    starts_early: bool = False

    @property
    def is_xla(self) -> bool:
        """Whether programs are compiled by XLA, whose operations then exist."""
        return self.compiler == "xla"

    def at(self, point: str) -> list[Callable[..., Any]]:
        """Return the passes for one of ``POINTS``, in the order in which they run."""
        return [each.apply for each in self.passes if each.point == point]

    def first(self, point: str, *given: Any) -> Any:
        """Return the first result of a pass at ``point`` that is not None, else None."""
        return next((made for apply in self.at(point) if (made := apply(*given)) is not None), None)


WITHOUT_PASSES = Target()
