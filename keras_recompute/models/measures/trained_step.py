"""The training step that ``fit`` runs, as a function, for a model and all that share its layers.

It is the step of the model as it is compiled: its loss and metrics, where a sample has targets for
them, its optimizer, with clipping, loss scaling and gradient accumulation. Unknown parts are
replaced by defaults, which ``description`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ...engine import ordered_updates
from ...keras_backend.update_reasons import reason_of_optimizer
from ...liveness import Program
from ...liveness.abstract_models import as_abstract_as
from ...liveness.keras_step import build_model, build_optimizer, training_step
from ...liveness.tensorflow_functions import batch_spec, compile_step
from ...seams.keras.layers import takes_training
from ...seams.keras.replicated_steps import strategy_of
from ...seams.keras.training import record_loss
from ...seams.keras.variables import only_compiling


@dataclass(frozen=True)
class TrainedStep:
    """A training step on batches of known shapes.

    Attributes:
        inputs: Types and shapes of the inputs, as the model takes them.
        targets: The targets, and weights of samples if there are any, as nests of types and
            shapes; empty where only inputs are known.
        optimizer: Built for the model's weights; None where several replicas update them.
        description: Which loss and which optimizer, in words.
    """

    model: keras.Model
    inputs: Any
    targets: tuple[Any, ...]
    optimizer: Any
    description: str
    found_by: ClassVar[str] = "compiled"

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Types and shapes of the arguments of the step: inputs, then targets, flat."""
        return keras.tree.flatten((self.inputs, self.targets))

    def compiled(
        self, candidate: Any, *, device: str | None = None, layers_of: Any = None
    ) -> Program:
        """Return the record of the step that trains ``candidate``, compiled by XLA."""
        specs = self.specs
        return compile_step(
            self.of(candidate),
            specs,
            input_feed=range(len(specs)),
            layers_of=layers_of or candidate,
            device=device,
        )

    def of(self, candidate: keras.Model) -> Callable[..., Any]:
        """Return the step that trains ``candidate``, a function of flat inputs and targets.

        ``candidate`` takes the inputs and has the weights of the model.
        """
        variables = self.model.trainable_variables
        training = {"training": True} if takes_training(candidate) else {}

        def step(*batch: tf.Tensor) -> Any:
            with ordered_updates():  # as in fit
                return update(*batch)

        def update(*batch: tf.Tensor) -> Any:
            inputs, targets = keras.tree.pack_sequence_as((self.inputs, self.targets), batch)
            with tf.GradientTape() as tape:
                outputs = candidate(inputs, **training)
                loss = self._loss(candidate, inputs, outputs, targets)
                if self.model.compiled:
                    record_loss(self.model, loss, tf.shape(batch[0])[0])
                scaled = loss if self.optimizer is None else self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, [v.value for v in variables])
            if self.optimizer is None:
                return loss, gradients
            pairs = [(g, v) for g, v in zip(gradients, variables) if g is not None]
            pairs = pairs or list(zip(gradients, variables))  # Keras refuses to update nothing
            if pairs:
                self.optimizer.apply(*map(list, zip(*pairs)))
            if not targets:
                return loss
            y, weights = (*targets, None)[:2]
            return self.model.compute_metrics(inputs, y, outputs, weights)

        step.__name__ = "training_step"  # the program is called after it
        return step

    def _loss(
        self, candidate: keras.Model, inputs: Any, outputs: Any, targets: Sequence[Any]
    ) -> Any:
        if targets:
            y, weights = (*targets, None)[:2]
            loss = self.model.compute_loss(x=inputs, y=y, y_pred=outputs, sample_weight=weights)
            return tf.cast(loss, tf.float32)
        return loss_of_squares(candidate, outputs)


def loss_of_squares(model: keras.Model, outputs: Any) -> tf.Tensor:
    """Return half the sum of the squares of all ``outputs`` and what layers of ``model`` add.

    Its gradients are as large as the outputs.
    """
    floating = [tf.cast(y, tf.float32) for y in keras.tree.flatten(outputs) if y.dtype.is_floating]
    added = [tf.cast(loss, tf.float32) for loss in model.losses]
    return tf.add_n([*map(tf.nn.l2_loss, floating), *added])


def trained_step(model: keras.Model, inputs: Any, targets: tuple[Any, ...] = ()) -> TrainedStep:
    """Return the step by which ``fit`` trains ``model``; its optimizer is built if it was not.

    ``inputs`` is a nest of types and shapes. ``targets`` are nests of tensors, arrays or specs. A
    model that is not compiled makes no use of them.
    """
    compiled = getattr(model, "optimizer", None) is not None
    targets = targets if compiled and getattr(model, "loss", None) is not None else ()
    loss = "its loss" if targets else "the squares of its outputs as the loss"
    if _replicas(model) > 1:
        optimizer, how = None, "without the update, which runs on all replicas"
    else:
        optimizer = model.optimizer if compiled else keras.optimizers.SGD()
        build_optimizer(optimizer, model)
        kind = type(optimizer).__name__
        how = f"with its {kind}" if compiled else f"with {kind}, as it is not compiled"
        reason = reason_to_wait(model)
        how += f", whose updates wait for all gradients ({reason})" if reason else ""
    inputs, specs = keras.tree.map_structure(batch_spec, (inputs, targets))
    if specs:
        build_model(model, (inputs, *specs))  # its metrics
    return TrainedStep(model, inputs, specs, optimizer, f"a step {how}, and {loss}")


def build_by_step(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Have ``model`` make its variables by tracing its own step on a ``batch`` of specs."""
    step = training_step(model, batch)
    with as_abstract_as(model), only_compiling():
        tf.function(step, autograph=False).get_concrete_function(*batch)


def reason_to_wait(model: keras.Model) -> str | None:
    """Return why updates of ``model`` wait for all gradients; None if each waits for its own."""
    if _replicas(model) > 1:
        # Compiled, a replica's step is one XLA program without collectives. It cannot sum in its
        # middle, and returns all gradients. Without jit ``fit`` updates in the backward pass, but
        # what is planned and measured is the program of one replica.
        return "replicas sum them after their compiled programs"
    return reason_of_optimizer(getattr(model, "optimizer", None))


def _replicas(model: keras.Model) -> int:
    strategy = strategy_of(model)
    return 1 if strategy is None else strategy.num_replicas_in_sync
