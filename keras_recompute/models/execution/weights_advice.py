"""A warning on JAX and PyTorch, where weights leave nothing for checkpoints to save.

Shapes alone say it, so that nothing is traced or run for it. Of a layer of the user's own, or one
with layers inside, they do not tell what it keeps: then nothing is said.
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

# Of what weights take. Compilers save about as much by other means.
NEXT_TO_NOTHING = 0.02
# Bytes of a step, below which its memory does not matter.
SPOKEN_OF = 8 * 2**20


def warn_of_weights(model: keras.Model, calls: Collection[Call], sizes: Sizes | None) -> None:
    """Warn where the ``sizes`` of all ``calls`` are known, and next to nothing beside weights.

    Gradients of all weights count, and what an optimizer that is built keeps.
    """
    if sizes is None or not sizes.known.issuperset(calls):
        return
    optimizer: Any = getattr(model, "optimizer", None)
    state = optimizer.variables if optimizer is not None and optimizer.built else []
    fixed = bytes_of_variables([*model.variables, *model.trainable_variables, *state])
    kept = sum(sizes.made.values())
    if fixed < SPOKEN_OF or kept > NEXT_TO_NOTHING * fixed:
        return
    weights = "weights, their gradients and" if state else "weights and their gradients, beside"
    warn_user(
        f"the checkpoints of {model.name!r} save next to nothing: of a training step "
        f"{format_bytes(fixed)} are {weights} what the optimizer keeps, which no checkpoint saves, "
        f"and {format_bytes(kept)} are activations, by their shapes. Take larger batches, or train "
        "the plain model. checkpointed(..., sample=batch) compares the two"
    )
