"""Programs in two stages, one after the other, that a pass for a compiler has separated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

import tensorflow as tf

from .program import GraphProgram
from .renames import Renames


@dataclass(frozen=True, eq=False)
class TwoStageProgram:
    """``first`` reads the ports with the numbers ``read``; ``rest`` also takes its results.

    They are behind all ports. Derived classes prevent, in ``write``, that a compiler makes one
    program of the two.
    """

    first: GraphProgram
    rest: Written
    read: tuple[int, ...]

    def write(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Do what ``GraphProgram.write`` does for the whole program."""
        raise NotImplementedError

    def rebound_to(self, handles: Mapping[int, tf.Tensor], renames: Renames) -> TwoStageProgram:
        """Do what ``GraphProgram.rebound_to`` does for the whole program."""
        first, rest = (
            self.first.rebound_to(handles, renames),
            self.rest.rebound_to(handles, renames),
        )
        return replace(self, first=first, rest=rest)

    def definition(self) -> None:
        """Make the definitions of both stages, as ``GraphProgram.definition`` does."""
        self.first.definition()
        self.rest.definition()


@dataclass(frozen=True, eq=False)
class EarlyStage:
    """A backward program in two: ``first`` takes its ports, ``rest`` also the results.

    The results take the place of the last ports.
    """

    first: GraphProgram
    rest: GraphProgram


Written = Union[GraphProgram, TwoStageProgram]


def split_last_stage(program: Written, split: Callable[[GraphProgram], Written]) -> Written:
    """Return ``program`` with its last stage as ``split`` makes it."""
    if isinstance(program, TwoStageProgram):
        return replace(program, rest=split_last_stage(program.rest, split))
    return split(program)
