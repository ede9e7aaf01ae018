"""What a training step is made of where the model says it, and defaults where it does not.

It serves JAX and PyTorch. Each has its own ``TrainedStep``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import keras

from ...keras_backend import require
from ...liveness.keras_step import build_model, build_optimizer
from .batch_specs import batch_spec

_Step = TypeVar("_Step", bound="StepParts")


@dataclass(frozen=True)
class StepParts:
    """A training step on batches of known shapes.

    Attributes:
        inputs: Types and shapes of the inputs, as the model takes them.
        targets: The targets, and weights of samples if there are any, as nests of types and
            shapes; empty where only inputs are known.
        optimizer: Built for the model's weights.
        description: Which loss and which optimizer, in words.
    """

    model: keras.Model
    inputs: Any
    targets: tuple[Any, ...]
    optimizer: Any
    description: str

    @classmethod
    def of_model(
        cls: type[_Step], model: keras.Model, inputs: Any, targets: tuple[Any, ...] = ()
    ) -> _Step:
        """Return the step by which ``fit`` trains ``model``; its optimizer is built if it was not.

        ``inputs`` is a nest of types and shapes. ``targets`` are nests of arrays or specs. A model
        that is not compiled makes no use of them: it is trained by SGD, and by the squares of its
        outputs.
        """
        compiled = getattr(model, "optimizer", None) is not None
        targets = targets if compiled and getattr(model, "loss", None) is not None else ()
        loss = "its loss" if targets else "the squares of its outputs as the loss"
        optimizer = model.optimizer if compiled else keras.optimizers.SGD()
        build_optimizer(optimizer, model)
        kind = type(optimizer).__name__
        how = f"with its {kind}" if compiled else f"with {kind}, as it is not compiled"
        specs = keras.tree.map_structure(batch_spec, targets)
        if specs:
            build_model(model, (inputs, *specs))  # its metrics
        return cls(model, inputs, specs, optimizer, f"a step {how}, and {loss}")


def build_by_step(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Have ``model`` make its variables as ``fit`` does, on a ``batch`` of types and shapes."""
    build_model(model, batch)


def seconds_with_jit_and_without(model: keras.Model, specs: Any) -> tuple[float | None, float]:
    """Raise UnsupportedError: steps are timed on TensorFlow alone."""
    require("plan(timed=)")
    raise AssertionError((model, specs))
