"""The training step that ``fit`` runs on JAX, for a model and all that share its layers.

It is the step of the model as it is compiled, with its loss and metrics where a sample has targets
for them. Unknown parts are replaced by defaults, which ``description`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import keras

from ...keras_backend.update_reasons import reason_of_optimizer
from ...liveness import Program, compile_program
from ...liveness.jax_functions import batch_spec as shape_of
from ...liveness.jax_training_step import State, step_on, variables_trained
from ...seams.keras.layers import takes_training
from .step_defaults import StepParts

Arrays = Sequence[Any]


@dataclass(frozen=True)
class TrainedStep(StepParts):
    """A training step on batches of known shapes, compiled by XLA."""

    found_by: ClassVar[str] = "compiled"

    def compiled(
        self, candidate: keras.Model, *, device: str | None = None, layers_of: Any = None
    ) -> Program:
        """Return the record of the step that trains ``candidate``, which has the same weights."""
        data = jax.tree.map(shape_of, (self.inputs, *self.targets))
        variables = variables_trained(self.model, self.optimizer)
        compiled = compile_program(
            step_on(variables, data, self._of(candidate)),
            layers_of=candidate if layers_of is None else layers_of,
            device=device,
        )
        return compiled.program()

    def _of(self, candidate: keras.Model) -> Callable[..., Any]:
        """Return the step of ``candidate``, a function of a state and a batch."""
        call = _stateless_call_of(candidate, self.model)

        def with_its_loss(state: State, data: tuple[Any, ...]) -> Any:
            # The model's own step, with its loss, metrics and updates, on the candidate's outputs.
            with _calling(self.model, call):
                return self.model.train_step(state, data)

        def with_squares(state: State, data: tuple[Any, ...]) -> Any:
            weights, others, states, metrics = state

            def loss(weights: Arrays) -> tuple[Any, Arrays]:
                outputs, new, added = call(weights, others, data[0], return_losses=True)
                total = loss_of_squares(outputs, added)
                with keras.StatelessScope(list(zip(self.optimizer.variables, states))):
                    return self.optimizer.scale_loss(total), new

            (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
            weights, states = self.optimizer.stateless_apply(states, gradients, weights)
            return value, (weights, others, states, metrics)

        return with_its_loss if self.targets else with_squares


@contextmanager
def _calling(model: keras.Model, call: Callable[..., Any]) -> Iterator[None]:
    """Have ``model`` take ``call`` for its ``stateless_call`` in the block."""
    model.__dict__["stateless_call"] = call  # an attribute would be tracked
    try:
        yield
    finally:
        del model.__dict__["stateless_call"]


def loss_of_squares(outputs: Any, added: Arrays) -> jax.Array:
    """Return half the sum of the squares of all ``outputs`` and the ``added`` losses.

    Its gradients are as large as the outputs.
    """
    total = jnp.zeros(())
    for output in jax.tree.leaves(outputs):
        if jnp.issubdtype(output.dtype, jnp.floating):
            total += jnp.sum(output.astype(jnp.float32) ** 2) / 2
    for loss in added:
        total += loss.astype(jnp.float32)
    return total


def reason_to_wait(model: keras.Model) -> str | None:
    """Return why updates of ``model`` wait for all gradients; None if each waits for its own."""
    return reason_of_optimizer(getattr(model, "optimizer", None))


def _stateless_call_of(candidate: keras.Model, model: keras.Model) -> Callable[..., Any]:
    """Return the ``stateless_call`` of ``candidate`` on the variables of ``model``, in its order.

    Both have the same variables.
    """
    # A functional model and its checkpointed twin may list their layers in another order.
    orders = []
    for kind in ("trainable_variables", "non_trainable_variables"):
        number_of = {id(v): number for number, v in enumerate(getattr(model, kind))}
        orders.append([number_of[id(v)] for v in getattr(candidate, kind)])
    trainable, others = orders
    training = {"training": True} if takes_training(candidate) else {}
    stateless_call = candidate.stateless_call  # before it is replaced, where it is the model itself

    def call(weights: Arrays, state: Arrays, *args: Any, **kwargs: Any) -> Any:
        its_weights = [weights[number] for number in trainable]
        its_state = [state[number] for number in others]
        results = stateless_call(its_weights, its_state, *args, **{**kwargs, **training})
        new = list(state)
        for number, value in zip(others, results[1]):
            new[number] = value
        return (results[0], new, *results[2:])

    return call
