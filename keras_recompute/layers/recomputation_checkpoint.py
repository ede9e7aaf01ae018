"""The layer that marks the ends of recomputed sections in a model."""

from __future__ import annotations

import contextlib
import contextvars
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import keras

from ..errors import RecomputeWarning
from ..keras_backend.gradient_demand import gradient_may_be_asked
from ..seams.keras.call_context import entry_layer

_obeyed: contextvars.ContextVar[Any] = contextvars.ContextVar("obeyed", default=None)
_EVERY = object()
_warned: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def obey_checkpoints(layer: Any = _EVERY) -> Iterator[None]:
    """Suppress the warning that checkpoint layers do nothing, inside the context.

    For the checkpoint ``layer``, by default for all: the caller takes care of them.
    """
    before = _obeyed.set(layer)
    try:
        yield
    finally:
        _obeyed.reset(before)


@keras.saving.register_keras_serializable(package="keras_recompute")
class RecomputationCheckpoint(keras.layers.Layer):
    """Identity layer; ``keras_recompute.Model`` saves its inputs and recomputes what lies between.

    Takes and returns any nest of tensors. In any other model it does nothing, and a
    RecomputeWarning says so once if a gradient may be needed. Its config is Keras's own: name,
    trainable and dtype. Source: the layer of the same name in Graphcore's TensorFlow addons.

    Examples:
        >>> x = inputs = keras.Input((8,))
        >>> for units in (16, 32):
        ...     x = keras.layers.Dense(units, "tanh")(x)
        ...     x = kr.RecomputationCheckpoint()(x)
        >>> model = kr.Model(inputs, keras.layers.Dense(1)(x))
        >>> len(model.plan.named_steps)  # a section per checkpoint, and the rest after the last one
        3
    """

    # Whether it is from a file of an earlier version, whose ``checkpointed`` put it in.
    was_inserted = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        # No weights to build, so that Keras need not call it first.
        self.built = True

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RecomputationCheckpoint:
        config = dict(config)
        was_inserted = config.pop("was_inserted", False)
        layer = cls(**config)
        layer.was_inserted = was_inserted
        return layer

    def call(self, inputs: Any) -> Any:
        """Return ``inputs``, any nest of tensors."""
        if _obeyed.get() not in (self, _EVERY) and gradient_may_be_asked():
            _warn_ignored(self, entry_layer())
        return keras.tree.map_structure(lambda t: t, inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the shapes and types of ``inputs``."""
        return keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, dtype=t.dtype), inputs)


def _warn_ignored(checkpoint: RecomputationCheckpoint, holder: Any) -> None:
    """Warn, once per ``holder``, that its checkpoint does nothing.

    ``holder`` is the layer or model that was called.
    """
    if holder in _warned:
        return
    _warned.add(holder)
    where = (
        f"in {holder.name!r}, a {type(holder).__name__},"
        if holder is not checkpoint
        else "called alone,"
    )
    warnings.warn(
        f"the RecomputationCheckpoint {checkpoint.name!r} {where} does nothing: it works only in "
        "the graph of layers of a keras_recompute.Model. Make one by "
        "keras_recompute.Model(inputs, outputs), or by keras_recompute.checkpointed(model). In a "
        "call method of your own use keras_recompute.checkpoint",
        RecomputeWarning,
        stacklevel=2,
    )
