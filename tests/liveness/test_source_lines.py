"""Buffers know the line of the user's code that they come from, through loops, branches and what
the engine copied.
"""

from __future__ import annotations

import inspect

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr
import keras_recompute.engine  # before anything is compiled: it sets a flag of XLA
from keras_recompute.liveness import profile

W = tf.Variable(np.eye(64, dtype=np.float32) * 0.5)
BYTES = 4 * 512 * 64
X = tf.TensorSpec((512, 64))


def wave(x):
    return tf.sin(tf.matmul(x, W))


class Squashed(keras.layers.Layer):
    def call(self, x):
        return tf.tanh(tf.matmul(x, W))


def line_in(function, text: str) -> str:
    """Return file and number of the line of ``function`` that has ``text``."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [n for n, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(function)}:{first + number}"


def sources(program) -> dict[tuple[str, str], set[str | None]]:
    """Return the sources of the large temporary buffers by the kind of operation and the phase."""
    found: dict[tuple[str, str], set[str | None]] = {}
    for buffer in program.buffers:
        if buffer.size_bytes >= BYTES and buffer.lifetime == "temporary" and buffer.op_name:
            found.setdefault(
                (buffer.op_name.rpartition("/")[2].rstrip("_0123456789"), buffer.phase), set()
            ).add(buffer.source)
    return found


def step(function):
    def run(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(function(x)) ** 2)
        return tape.gradient(loss, W)

    return run


def test_the_line_of_a_plain_function():
    found = sources(profile(step(lambda x: wave(wave(x))), X))
    assert found[("MatMul", "forward")] == {line_in(wave, "tf.sin")}


def test_what_the_engine_replays_has_the_line_of_the_function_that_it_was_traced_from():
    found = sources(profile(step(kr.checkpoint(lambda x: wave(wave(wave(x))))), X))
    assert found[("MatMul", "recompute")] == {line_in(wave, "tf.sin")}


def test_the_line_inside_a_loop():
    def looped(x):
        return tf.while_loop(
            lambda i, _: i < 3, lambda i, a: (i + 1, wave(a)), (0, x), maximum_iterations=3
        )[1]

    found = sources(profile(looped, X))
    assert found[("MatMul", "forward")] == {line_in(wave, "tf.sin")}


def test_a_layer_of_the_users_own_in_recomputed_sections_of_a_model():
    inputs = x = keras.Input((64,), batch_size=512)
    for _ in range(4):
        x = Squashed()(x)
    model = kr.checkpointed(keras.Model(inputs, x), every=2)
    found = sources(profile(step(lambda x: model(x, training=True)), X))
    assert found[("MatMul", "recompute")] == {line_in(Squashed.call, "tf.tanh")}
