"""The training step that ``fit`` runs on PyTorch, for a model and all that share its layers.

It is recorded on fake tensors: nothing is compiled, and nothing trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import torch

from ...keras_backend import torch_updates
from ...liveness.program import Program
from ...liveness.torch_functions import profile_step
from ...seams.keras.layers import takes_training
from ...seams.keras.training import record_loss
from .step_defaults import StepParts


@dataclass(frozen=True)
class TrainedStep(StepParts):
    """A training step on batches of known shapes, recorded on fake tensors."""

    found_by: ClassVar[str] = "recorded on fake tensors"

    def compiled(
        self, candidate: keras.Model, *, device: str | None = None, layers_of: Any = None
    ) -> Program:
        """Return the record of the step that trains ``candidate``, which has the same weights."""
        return profile_step(
            self._of(candidate),
            self.model,
            (self.inputs, *self.targets),
            optimizer=self.optimizer,
            layers_of=candidate if layers_of is None else layers_of,
            device=device,
        )

    def _of(self, candidate: keras.Model) -> Callable[[Any], Any]:
        """Return the step of ``candidate``, in the order of Keras's own on PyTorch."""
        training = {"training": True} if takes_training(candidate) else {}

        def training_step(batch: tuple[Any, ...]) -> Any:
            if not getattr(candidate, "recomputes", False):
                return update(batch)
            with torch_updates.own_step(candidate, self.optimizer):  # as in fit
                return update(batch)

        def update(batch: tuple[Any, ...]) -> Any:
            x, *rest = batch
            outputs = candidate(x, **training)
            # Behind the forward pass, as in Keras: the old gradients are alive in it.
            self.model.zero_grad()
            if rest:
                y, weights = (*rest, None)[:2]
                given = {"x": x, "y": y, "y_pred": outputs, "sample_weight": weights}
                loss = self.model.compute_loss(**given, training=True)
                record_loss(self.model, loss, keras.tree.flatten(x)[0].shape[0])
            else:
                loss = loss_of_squares(candidate, outputs)
            weights_trained = self.model.trainable_weights
            if weights_trained:
                self.optimizer.scale_loss(loss).backward()
                gradients = [variable.value.grad for variable in weights_trained]
                with torch.no_grad():
                    self.optimizer.apply(gradients, weights_trained)
            return self.model.compute_metrics(x, y, outputs, weights) if rest else loss

        return training_step


def loss_of_squares(model: keras.Model, outputs: Any) -> torch.Tensor:
    """Return half the sum of the squares of all ``outputs`` and what layers of ``model`` add.

    Its gradients are as large as the outputs.
    """
    total = sum(loss.to(torch.float32) for loss in model.losses)
    for output in keras.tree.flatten(outputs):
        if output.is_floating_point():
            total = total + (output.to(torch.float32) ** 2).sum() / 2
    return total


def reason_to_wait(model: keras.Model) -> str | None:
    """Return why updates of ``model`` with checkpoints wait for all gradients; None if none do."""
    optimizer = getattr(model, "optimizer", None)
    return None if optimizer is None else torch_updates.reason_to_wait(optimizer)
