"""Programs whose memory can be computed by hand."""

from __future__ import annotations

import tensorflow as tf

F32 = 4  # bytes
STAGE = "optimized_hlo_proto_serialized"


def scan(length: int):
    """Return a compiled function of x [64, 32] that multiplies it ``length`` times by u [32, 32]
    and keeps every state.
    """
    u = tf.Variable(tf.eye(32), name="u")

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        def body(i, x, states):
            return i + 1, tf.matmul(x, u), states.write(i, x)

        states = tf.TensorArray(tf.float32, length, element_shape=(64, 32))
        _, x, states = tf.while_loop(
            lambda i, *_: i < length, body, (0, x, states), maximum_iterations=length
        )
        return tf.reduce_sum(states.stack() ** 2) + tf.reduce_sum(x)

    return run


def serialized(function, *specs) -> bytes:
    """Return the compiled program of a compiled function as XLA serializes it."""
    return function.experimental_get_compiler_ir(*specs)(stage=STAGE)
