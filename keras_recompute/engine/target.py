"""The target of a program: the compiler that runs it, as a value that is handed from step to step.

The mechanism (trace, join, partition, check, lower) is right for every target without any pass, only larger or slower. It
knows neither the passes nor the compiler's name: at a few points it applies whatever passes the target brings for that point.
Which there are, and when a target is looked up, stands in ``passes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Where passes are applied -> what a pass for it is given, and returns.
POINTS = {
    "traced": "nothing: a context manager, in which a function that is traced writes the same otherwise",
    "joined": "the operations that differentiate a trace, gradients that come in, those wanted, target: orders them in place",
    "policy": "residuals, and references to what is at hand: the policy that is used where none is given",
    "backward": "a program and the joint graph that it is of: the program, or one in two parts (``TwoStageProgram``)",
    "prologue": "a program and its joint graph: what of it runs before the fence, and the rest (``EarlyStage``), or None",
    "operation": "an operation of a program: a function of its inputs that replaces it, or None",
    "copied": "an operation of a program and its copy: completes the copy",
    "fence": "as ``target_ops.fenced`` is: the results, computed late",
    "delay": "tensors, and tensors after which they are to be computed: the former, computed late",
    "completion": "tensors: a scalar that depends on all of their elements, or None",
    "zeros": "a shape and a type: zeros, or None",
    "slice": "a tensor from outside of a loop's body, axis, begin, length, target: that piece of it, or None",
    "stack_gradient": "tensors of which a loop takes a share in each turn, gradients of these, target: those gradients",
    "tail": "how many equal sections there are, with the one behind the last checkpoint: True where it runs in their loop",
    "body": "a function that writes operations: one that writes them with less beside them",
}


@dataclass(frozen=True)
class Pass:
    """One pass: ``apply`` is called at ``point`` for the targets ``on``, compilers or backends of one.

    ``notes`` is the file in benchmarks/notes with what it was expected to bring, and what it brought.
    """

    name: str
    point: str
    apply: Callable[..., Any]
    on: tuple[str, ...]
    does: str
    notes: str


@dataclass(frozen=True)
class Target:
    """A compiler, ``tensorflow`` (operation by operation) or ``xla``, the passes for it, and what else is true of it.

    ``knows_shapes``: every shape is known before the program runs, but not that of a value which was stored and read again.
    ``updates_in_place``: a loop writes into an array without copying it. ``has_one_memory``: values cannot be moved to a host.
    ``holds_around_loops``: around a loop more is held outside of a branch than in one, and a tie copies what it has stored.
    ``updates_early``: updates of weights run as soon as they can, without being told to.
    """

    compiler: str = "tensorflow"
    passes: tuple[Pass, ...] = ()
    knows_shapes: bool = False
    updates_in_place: bool = False
    has_one_memory: bool = False
    holds_around_loops: bool = False
    updates_early: bool = False

    @property
    def is_xla(self) -> bool:
        """Whether programs are compiled by XLA, in which case its operations exist."""
        return self.compiler == "xla"

    def at(self, point: str) -> list[Callable[..., Any]]:
        """Return the passes for one of ``POINTS``, in the order in which they run."""
        return [each.apply for each in self.passes if each.point == point]

    def first(self, point: str, *given: Any) -> Any:
        """Return what the first pass at ``point`` makes that makes anything of ``given``, else None."""
        return next((made for apply in self.at(point) if (made := apply(*given)) is not None), None)


WITHOUT_PASSES = Target()
