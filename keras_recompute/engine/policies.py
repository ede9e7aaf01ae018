"""What a section saves. A policy is a value, named by its effect, that compares equal to its like."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from .marks import name_of


@dataclass(frozen=True)
class SaveNothing:
    """Save nothing but the inputs: everything is recomputed."""

    def __call__(self, tensor: tf.Tensor) -> bool:
        return False


@dataclass(frozen=True)
class SaveEverything:
    """Save every residual: nothing is recomputed. The plain gradient, under the engine's purity rule."""

    def __call__(self, tensor: tf.Tensor) -> bool:
        return True


@dataclass(frozen=True)
class SaveNames:
    """Save only the values marked with one of ``names`` (see ``checkpoint_name``)."""

    names: frozenset[str]

    def __call__(self, tensor: tf.Tensor) -> bool:
        return name_of(tensor) in self.names


save_nothing = SaveNothing()
save_everything = SaveEverything()


def save_names(*names: str) -> SaveNames:
    """Return the policy that saves only the values marked with one of ``names``."""
    return SaveNames(frozenset(names))
