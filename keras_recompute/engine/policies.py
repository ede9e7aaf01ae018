"""What a section saves. A policy is a value, named by its effect, that compares equal to its like."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from .marks import is_replay_source, name_of


@dataclass(frozen=True)
class SaveNothing:
    """Save nothing but the inputs: everything is recomputed."""

    def __call__(self, _: tf.Tensor) -> bool:
        return False


@dataclass(frozen=True)
class SaveEverything:
    """Save every residual: nothing is recomputed. The plain gradient, under the engine's purity rule."""

    def __call__(self, _: tf.Tensor) -> bool:
        return True


@dataclass(frozen=True)
class SaveReplaySources:
    """Save only the values from which a marked replay is cheaper than running again (see ``cheaper_replay``).

    For a recurrence these are its outputs: with them the gates follow from one product instead of a loop.
    """

    def __call__(self, tensor: tf.Tensor) -> bool:
        return is_replay_source(tensor)


@dataclass(frozen=True)
class SaveNames:
    """Save only the values marked with one of ``names`` (see ``checkpoint_name``)."""

    names: frozenset[str]

    def __call__(self, tensor: tf.Tensor) -> bool:
        return name_of(tensor) in self.names


save_nothing = SaveNothing()
save_everything = SaveEverything()
save_replay_sources = SaveReplaySources()


def save_names(*names: str) -> SaveNames:
    """Return the policy that saves only the values marked with one of ``names``."""
    return SaveNames(frozenset(names))
