"""Categories of storage, by the kind of parameter or by the operation that writes it.

Everything has a category. What cannot be told is ``other``, and is counted and shown like the rest.
"""

from __future__ import annotations

import re
from typing import AbstractSet, Iterable

from ..op_names import BACKWARD, FORWARD, RECOMPUTE, UPDATE

WEIGHT, OPTIMISER, INPUT, CHECKPOINT = "weight", "optimiser", "input", "checkpoint"
ACTIVATION, GRADIENT, OTHER = "activation", "gradient", "other"
CATEGORIES = (WEIGHT, OPTIMISER, INPUT, CHECKPOINT, ACTIVATION, GRADIENT, OTHER)

_BY_PHASE = {FORWARD: ACTIVATION, RECOMPUTE: ACTIVATION, BACKWARD: GRADIENT, UPDATE: OPTIMISER}
# Scopes of checkpoint layers, such as "recomputation_checkpoint_3", and of a pipeline's stashes.
_CHECKPOINT = re.compile(r"(?:^|[/_])(?:checkpoints?|stash)(?:_\d+)?(?=/|$)")
# Every Keras optimiser has these two variables in its scope, and nothing else has.
_OPTIMISER_MARKS = ("/iteration", "/learning_rate")


def buffer_category(op_name: str | None, phase: str | None) -> str:
    """Return the category of storage written by the operation ``op_name`` in ``phase``.

    Each may be unknown.
    """
    if op_name and _CHECKPOINT.search(op_name):
        return CHECKPOINT
    return _BY_PHASE.get(phase or "", OTHER)


def optimiser_scopes(variables: Iterable[str]) -> AbstractSet[str]:
    """Return the scopes among the paths of variables that belong to an optimiser: ``{"adam"}``."""
    return frozenset(
        path.rsplit("/", 1)[0] for path in variables if path.endswith(_OPTIMISER_MARKS)
    )


def variable_category(path: str, optimisers: AbstractSet[str]) -> str:
    """Return the category of a variable: optimiser state, or a weight, trainable or not."""
    return OPTIMISER if any(path.startswith(f"{scope}/") for scope in optimisers) else WEIGHT
