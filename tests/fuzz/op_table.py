"""What the instructions of a program stand for in TensorFlow: functions whose values and
derivatives stay of order one.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

ROWS, WIDTH, WORDS = 3, 2, 4  # all different, so that no two axes can be mistaken


def numbers(*shape: int, seed: int) -> np.ndarray:
    """Return fixed numbers between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def _checked(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(x, tf.cast(1e3, x.dtype))]):
        return tf.sin(tf.identity(x))


APPLY = {
    "tanh": tf.tanh,
    "sin": tf.sin,
    "sigmoid": tf.sigmoid,
    "softplus": tf.math.softplus,
    "exp of sin": lambda x: tf.exp(tf.sin(x)),
    "gelu": tf.nn.gelu,
    "leaky relu": tf.nn.leaky_relu,
    "log": lambda x: tf.math.log1p(x * x),
    "stop gradient": lambda x: 0.5 * tf.stop_gradient(x),
    "softmax": lambda x: tf.nn.softmax(tf.reshape(x, [1, -1]))[0, 0] * x,
    "cast": lambda x: tf.cast(tf.cast(tf.sin(x), tf.float64), x.dtype),
    "complex": lambda x: tf.abs(
        tf.exp(tf.complex(0.1 * x, tf.sin(x)) * tf.complex(x, tf.ones_like(x)) * 0.3)
    ),
    "fft": lambda x: (
        0.3 * tf.math.real(tf.signal.fft(tf.complex(tf.sin(x)[tf.newaxis], x[tf.newaxis])))[0]
    ),
    "checked": _checked,
    "numpy": lambda x: (
        x * tf.ensure_shape(tf.numpy_function(np.cos, [tf.stop_gradient(x)], x.dtype), x.shape)
    ),
    "string": lambda x: (
        x * tf.cast(tf.strings.length(tf.strings.as_string(tf.size(x) + 100)) - 2, x.dtype)
    ),
    "identity": tf.identity,
}

COMBINE = {
    "add": tf.add,
    "subtract": tf.subtract,
    "multiply": lambda a, b: 0.7 * a * b,
    "divide": lambda a, b: a / (1.5 + b * b),
    "squared difference": lambda a, b: 0.5 * tf.math.squared_difference(a, b),
    "atan2": lambda a, b: tf.atan2(a, 2.0 + b * b),
    "add_n": lambda a, b: tf.add_n([a + 0.0 * b, b + 0.0 * a]),
    "where": lambda a, b: tf.where(tf.abs(a) < 100.0, b + 0.0 * a, a),
    "maximum": lambda a, b: tf.maximum(a + 5.0, b) - 5.0,
}

REDUCE = {
    "mean": tf.reduce_mean,
    "sum": lambda x, **axes: 0.4 * tf.reduce_sum(x, **axes),
    "logsumexp": tf.reduce_logsumexp,
    "variance": tf.math.reduce_variance,
}


def _stored(x: tf.Tensor) -> tf.Tensor:
    store = tf.TensorArray(x.dtype, 2, element_shape=x.shape)
    return tf.reduce_sum(store.write(0, tf.sin(x)).write(1, x).stack(), axis=0)


def _scattered(x: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(x, [[1]], tf.sin(x[:1]))


# Each takes a matrix and returns a matrix of the same shape.
MOVE = {
    "reshape": lambda x: tf.reshape(tf.sin(tf.reshape(x, [-1])), tf.shape(x)),
    "transpose": lambda x: tf.transpose(tf.sin(tf.transpose(x))),
    "slice": lambda x: tf.concat([x[1:], tf.sin(x[:1])], axis=0),
    "split": lambda x: tf.concat(tf.split(tf.sin(x), [1, WIDTH - 1], axis=1)[::-1], axis=1),
    "stack": lambda x: tf.reduce_prod(tf.stack([x, tf.sin(x)]), axis=0),
    "gather": lambda x: tf.gather(x, [2, 0, 0]) + tf.zeros_like(x),
    "gather columns": lambda x: tf.gather(x, [1, 1], axis=1) + tf.zeros_like(x),
    "gather_nd": lambda x: x * tf.gather_nd(x, [[0, 1], [1, 0]]),
    "reverse": lambda x: tf.reverse(tf.sin(x), [0]),
    "roll": lambda x: tf.roll(tf.sin(x), 1, axis=0),
    "pad": lambda x: tf.pad(tf.sin(x), [[1, 0], [0, 0]])[:-1],
    "tile": lambda x: tf.tile(tf.sin(x), [2, 1])[: tf.shape(x)[0]],
    "cumsum": lambda x: 0.5 * tf.cumsum(tf.sin(x)),
    "scatter": _scattered,
    "tensor array": _stored,
    "boolean mask": lambda x: (
        x * tf.reduce_mean(tf.boolean_mask(tf.sin(x), [True, False, True]), axis=0)
    ),
    "rows that are small": lambda x: (
        x + tf.reduce_sum(tf.boolean_mask(tf.sin(x), tf.reduce_sum(x, 1) < 100.0), axis=0)
    ),
    "segment sum": lambda x: tf.gather(
        tf.math.unsorted_segment_sum(tf.sin(x), [0, 1, 0], 2), [1, 0, 1]
    ),
    "top_k": lambda x: tf.math.top_k(tf.sin(x), WIDTH).values,
}
