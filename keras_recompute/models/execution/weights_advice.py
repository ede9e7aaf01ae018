"""The warning that weights leave nothing for checkpoints to save, on JAX and PyTorch.

On JAX and PyTorch activations are counted by the shapes of layers' outputs, so that nothing is
traced or run for it. A layer of the user's own, or one with layers inside, may keep more than its
outputs. In a model that has one nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import keras

from ...sizes import format_bytes
from ...user_code import warn_user
from ..keras_graph.call_graph import Call
from ..keras_graph.kept_end import Sizes
from .array_sizes import bytes_of_variables

# Activations over weights, gradients and the optimizer's state. Compilers save about as much
# without checkpoints.
NEXT_TO_NOTHING = 0.02
# Bytes of a step, below which its memory does not matter.
SPOKEN_OF = 8 * 2**20
INSTEAD = (
    "Take larger batches, or train the plain model. "
    "checkpointed(..., sample=batch) compares the two"
)


def warn_of_weights(model: keras.Model, calls: Collection[Call], sizes: Sizes | None) -> None:
    """Warn where ``sizes`` has what all ``calls`` keep, and it is next to nothing beside weights.

    The gradients of all weights are added to them, and the state of an optimizer that is built.
    """
    if sizes is None or not sizes.known.issuperset(calls):
        return
    state = optimizer_state(model)
    fixed = bytes_of_variables([*model.variables, *model.trainable_variables, *state])
    kept = sum(sizes.made.values())
    if fixed < SPOKEN_OF or kept > NEXT_TO_NOTHING * fixed:
        return
    warn_user(
        f"the checkpoints of {model.name!r} save next to nothing: of a training step "
        f"{format_bytes(fixed)} are {never_saved(state)}, and {format_bytes(kept)} are "
        f"activations, by their shapes. {INSTEAD}"
    )


def optimizer_state(model: keras.Model) -> list[Any]:
    """Return the variables of the model's optimizer; none of one that is not built."""
    optimizer: Any = getattr(model, "optimizer", None)
    return optimizer.variables if optimizer is not None and optimizer.built else []


def never_saved(state: list[Any]) -> str:
    """Return in words what takes memory whatever is recomputed; ``state`` is the optimizer's."""
    weights = "weights, their gradients and" if state else "weights and their gradients, beside"
    return f"{weights} what the optimizer keeps, which no checkpoint saves"
