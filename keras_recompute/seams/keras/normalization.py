"""Gradient of Keras's batch normalisation by TensorFlow's fused kernel.

Keras writes a dozen operations for the layer in training, and TensorFlow some sixty for their
gradient. The kernel is one operation. It is used where it computes all that is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

_Layer = keras.layers.BatchNormalization
_plain_call, _plain_moments = _Layer.call, _Layer._moments
_fuses: ContextVar[bool] = ContextVar(
    "whether the gradient of batch normalisation is one kernel", default=False
)
_found: ContextVar[list[tuple[tf.Tensor, tf.Tensor]] | None] = ContextVar(
    "means and variances of a call", default=None
)


@contextlib.contextmanager
def fuse_batch_norm_gradient() -> Iterator[None]:
    """Fuse the gradient of Keras's batch normalisation in graphs that this thread makes inside.

    Holds in training, for float32 images with channels last. The forward pass is unchanged.
    """
    _Layer.call, _Layer._moments = _call, _moments
    token = _fuses.set(True)
    try:
        yield
    finally:
        _fuses.reset(token)


@functools.wraps(_plain_moments)
def _moments(self: Any, *args: Any, **kwargs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    mean, variance = _plain_moments(self, *args, **kwargs)
    if (found := _found.get()) is not None:
        found.append((mean, variance))
    return mean, variance


@functools.wraps(_plain_call)  # Keras reads the parameters of a layer's call
def _call(
    self: Any, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None
) -> Any:
    if not (
        _fuses.get() and training and self.trainable and mask is None and _is_fusible(self, inputs)
    ):
        return _plain_call(self, inputs, training=training, mask=mask)
    found: list[tuple[tf.Tensor, tf.Tensor]] = []
    token = _found.set(found)
    try:
        y = _plain_call(self, inputs, training=training)
    finally:
        _found.reset(token)
    scale = tf.convert_to_tensor(self.gamma) if self.scale else tf.ones([inputs.shape[-1]])
    offset = [tf.convert_to_tensor(self.beta)] if self.center else []
    with y.graph.gradient_override_map({"IdentityN": _gradient_for(self.epsilon)}):
        return tf.identity_n([y, inputs, scale, *found[0], *offset])[0]


@functools.cache
def _gradient_for(epsilon: float) -> str:
    """Register the fused gradient for ``epsilon`` and return its name.

    It differentiates an ``IdentityN`` of (result, x, scale, mean, variance, offset).
    """
    name = f"keras_recompute.BatchNormalization with an epsilon of {epsilon!r}"

    @tf.RegisterGradient(name)
    def _(passed: tf.Operation, gradient: tf.Tensor, *_: Any) -> list[tf.Tensor | None]:
        _, x, scale, mean, variance, *offset = passed.inputs
        of_x, of_scale, of_offset, *_ = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=gradient,
            x=x,
            scale=scale,
            reserve_space_1=mean,
            reserve_space_2=variance,
            reserve_space_3=[],  # read by GPU kernels only
            epsilon=epsilon,
            is_training=True,
        )
        return [None, of_x, of_scale, None, None, *(of_offset for _ in offset)]

    return name


def _is_fusible(layer: Any, inputs: tf.Tensor) -> bool:
    is_plain = (
        type(layer)._moments is _moments
        and not layer.synchronized
        and not getattr(layer, "renorm", False)
    )
    is_image = inputs.shape.rank == 4 and inputs.shape[-1] is not None and layer.axis in (-1, 3)
    is_float32 = inputs.dtype == tf.float32 and layer.compute_dtype == "float32"
    return is_plain and is_image and is_float32 and not tf.executing_eagerly()
