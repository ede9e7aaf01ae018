"""The training step of a Keras model on JAX, as ``fit`` compiles it: from a state to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax

from ..seams.keras.training import watching_for_losses
from ..user_code import warn_user
from .categories import INPUT, OTHER
from .jax_shardings import divided_batch, shardings_of, share_bytes, variable_spec
from .keras_step import DATA_NAMES, build_model, built_optimizer, check_compiled, run_train_step
from .parameters import Parameter, describe_variables

# Trainable and other variables of the model, the optimizer's variables, and the metrics'.
State = tuple[list[Any], ...]


@dataclass(frozen=True)
class TrainingStep:
    """A training step: ``function(state, data)`` returns logs and the next state.

    Attributes:
        function: Jitted as ``fit`` does it.
        state: The types and shapes of its state, and of its
        data: a batch.
        parameters: What is known of the state and the batch, in the order of the program.
    """

    function: Callable[..., Any]
    state: State
    data: tuple[Any, ...]
    parameters: tuple[Parameter, ...]


def training_step(model: Any, data: tuple[Any, ...]) -> TrainingStep:
    """Return the step of a compiled model on batches like ``data``, which holds types and shapes.

    It is the ``train_step`` that ``fit`` would run, the class's own if it has one. Missing
    variables are created as in ``fit``. Nothing is trained. Raises InvalidArgumentError for a model
    that was not compiled, and for too little or too much data. Tracing the step warns if the model
    has no loss.
    """
    check_compiled(model, data)
    build_model(model, data)
    variables = variables_trained(model, built_optimizer(model))
    return step_on(variables, data, partial(_run_and_warn, model))


def _run_and_warn(model: Any, state: State, data: tuple[Any, ...]) -> Any:
    """Return the state behind a step of ``model``; warn if there is no loss."""

    def warn() -> None:
        warn_user(
            f"{model.name!r} has no loss, so its step trains nothing, and the compiler leaves out "
            "most of it: give compile(...) one"
        )

    with watching_for_losses(model, warn):
        return run_train_step(model, state, data)


def step_on(variables: State, data: tuple[Any, ...], function: Callable[..., Any]) -> TrainingStep:
    """Return ``function(state, data)`` as a step on ``variables`` and batches like ``data``."""

    def train_step(state: State, data: tuple[Any, ...]) -> Any:
        return function(state, data)

    state = _specs_of(variables)
    kept = chain(*variables[:3])
    parameters = describe_variables([(v.path, share_bytes(variable_spec(v))) for v in kept])
    for variable in variables[3]:
        size_bytes = share_bytes(variable_spec(variable))
        parameters.append(Parameter(variable.path, OTHER, size_bytes=size_bytes))
    data = divided_batch(data)
    for name, part in zip(DATA_NAMES, data):
        leaves = jax.tree.leaves(part)
        for number, leaf in enumerate(leaves):
            called = name if len(leaves) == 1 else f"{name}[{number}]"
            parameters.append(Parameter(called, INPUT, size_bytes=share_bytes(leaf)))
    return TrainingStep(_jitted_as_fit(train_step, state), state, data, tuple(parameters))


def _jitted_as_fit(step: Callable[..., Any], state: State) -> Callable[..., Any]:
    """Return ``step`` jitted as ``fit`` does it: the new state overwrites the old one in place."""
    # As fit does, lest XLA divides the new state in another way than the old one.
    shardings = shardings_of(state)
    divided = {} if shardings is None else {"out_shardings": (None, shardings)}
    return jax.jit(step, donate_argnums=0, keep_unused=True, **divided)


def variables_trained(model: Any, optimizer: Any) -> State:
    """Return the variables of a step's state: of the model, the optimizer and the metrics."""
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
        model.metrics_variables,
    )


def _specs_of(state: State) -> State:
    """Return types and shapes of the variables of a state."""
    return tuple(list(map(variable_spec, part)) for part in state)
