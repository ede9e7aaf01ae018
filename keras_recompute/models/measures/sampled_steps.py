"""Builds models on a sample batch, and compares their steps with and without recomputed layers.

A model with a ``train_step`` of its own may have no ``call``; its step is what builds it, as in
``fit``. Chosen layers are shared between the model and the one made of it. So the step of the new
model is the step of the old one while these layers are active.
"""

from __future__ import annotations

from typing import Any

import keras

from ...errors import InvalidArgumentError
from ...liveness import profile
from ...liveness.keras_step import build_model
from ...seams.keras.layers import layers_in
from ...seams.keras.training import has_own_train_step
from ...sizes import format_bytes
from ...user_code import warn_user
from ..classes.layer_remat import RematLayers, is_whole
from .backend_measures import (
    batch_spec,
    build_by_step,
    first_batch,
    text_of_specs,
    trained_step,
)
from .step_peak import lacking_saving

Batch = tuple[Any, ...]


def batch_of(sample: Any) -> Batch:
    """Return ``sample``, data as ``fit`` takes them or a data set, as one batch of specs."""
    parts = [part for part in first_batch(sample) if part is not None]
    return tuple(keras.tree.map_structure(batch_spec, part) for part in parts)


def is_complete(model: keras.Model) -> bool:
    """Return whether ``model`` has made its layers, and these their weights."""
    return bool(model.layers) and all(map(is_whole, layers_in(model, include_self=False)))


def build_on(model: keras.Model, batch: Batch) -> None:
    """Have ``model`` make its layers and weights for ``batch``, as ``fit`` would, without training.

    Raises InvalidArgumentError where it cannot be built so.
    """
    if is_complete(model):
        return
    if has_own_train_step(model):
        _require_compiled(model)
        build_by_step(model, batch)
        return
    try:
        if model.compiled:
            build_model(model, batch)
        else:
            model(keras.tree.map_structure(_symbolic, batch[0]))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if not model.built:
            raise InvalidArgumentError(
                f"{model.name!r} could not be built on sample=: {error}. Give a batch as for fit, "
                "or call the model on data first"
            ) from error


def _symbolic(spec: Any) -> keras.KerasTensor:
    return keras.KerasTensor(tuple(spec.shape), keras.backend.standardize_dtype(spec.dtype))


def warn_unless_blocks_save(model: keras.Model, blocks: RematLayers, batch: Batch) -> None:
    """Compile a step of ``model`` with and without ``blocks``, and warn if they hardly save."""
    plain_needed = _peak_bytes(model, batch)
    blocks.is_advised = True
    with blocks.active():
        needed = _peak_bytes(model, batch)
    saving = lacking_saving(needed, plain_needed)
    if not saving:
        return
    shapes = text_of_specs(keras.tree.flatten(batch))
    warn_user(
        f"recomputing {len(blocks.layers)} layers of {model.name!r} saves {saving}: a compiled "
        f"training step takes {format_bytes(needed)} with recomputation and "
        f"{format_bytes(plain_needed)} without, on {shapes}. Name layers that hold more, take "
        "larger batches, or train the plain model."
    )


def _peak_bytes(model: keras.Model, batch: Batch) -> int:
    if has_own_train_step(model):
        _require_compiled(model)
    if getattr(model, "compiled", False):
        return profile(model, *batch).peak_bytes
    return trained_step(model, batch[0]).compiled(model).peak_bytes


def _require_compiled(model: keras.Model) -> None:
    if not getattr(model, "compiled", False):
        raise InvalidArgumentError(
            f"{model.name!r} has a train_step of its own and is not compiled, so no training step "
            f"can be run on sample=. Call {model.name}.compile(...) first, as for fit"
        )
