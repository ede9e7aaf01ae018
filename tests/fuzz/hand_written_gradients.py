"""Functions with a gradient written by hand, and functions that raise."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .environment import World


class MineError(ValueError):
    """An exception of the user's own."""


def _doubled(x: tf.Tensor, _other: tf.Tensor, _world: World) -> tf.Tensor:
    """A gradient that is not the derivative, so that the derivative cannot pass for it."""

    @tf.custom_gradient
    def function(x):
        return tf.sin(x), lambda dy: 2.0 * dy * tf.cos(x)

    return function(x)


def _closure(x: tf.Tensor, other: tf.Tensor, _world: World) -> tf.Tensor:
    """A gradient that closes over what the forward pass made."""

    @tf.custom_gradient
    def function(x, other):
        product = tf.sin(x) * other
        return product, lambda dy: (dy * tf.tanh(product), dy * tf.sin(x))

    return function(x, other)


def _of_a_variable(x: tf.Tensor, _other: tf.Tensor, world: World) -> tf.Tensor:
    scalar = world.variables["scalar"]

    @tf.custom_gradient
    def function(x):
        read = tf.convert_to_tensor(scalar)

        def gradient(dy, variables=None):
            del variables
            return 1.5 * dy * tf.sin(read), [tf.reduce_sum(dy * x) * tf.cos(read)]

        return x * tf.sin(read), gradient

    return function(x)


def _reversed(x: tf.Tensor, _other: tf.Tensor, _world: World) -> tf.Tensor:
    return tf.grad_pass_through(tf.round)(x) + tf.custom_gradient(
        lambda x: (tf.identity(x), lambda dy: -dy)
    )(x)


def _recomputed(x: tf.Tensor, _other: tf.Tensor, world: World) -> tf.Tensor:
    """TensorFlow's own way to recompute."""
    return tf.recompute_grad(lambda x: tf.exp(tf.sin(x * world.variables["scalar"])))(x)


CUSTOM: dict[str, Any] = {
    "doubled": _doubled,
    "closure": _closure,
    "variable": _of_a_variable,
    "reversed": _reversed,
    "recompute_grad": _recomputed,
}


def _raises(x: tf.Tensor) -> tf.Tensor:
    raise MineError(f"mine, of rank {x.shape.rank}")


def _without_gradient(x: tf.Tensor) -> tf.Tensor:
    return (
        x
        + tf.reshape(
            tf.image.adjust_contrast(tf.reshape(tf.cast(x, tf.float32), [-1, 1, 1]), 2.0),
            tf.shape(x),
        )[:1, :1]
    )


def _asserted(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(x, tf.cast(-1e3, x.dtype))]):
        return tf.identity(x)


FAIL: dict[str, Any] = {
    "python": _raises,
    "shapes": lambda x: tf.matmul(x, x),
    "numerics": lambda x: tf.debugging.check_numerics(tf.math.log(-1.0 - x * x), "not a number"),
    "assertion": _asserted,
    "no gradient": _without_gradient,
}
