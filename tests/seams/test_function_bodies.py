"""The functions that TensorFlow traces for branches and loops."""

import contextlib

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.function_bodies import trace_bodies_within


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (lambda x: tf.cond(x > 0, lambda: x, lambda: -x), 2),
        (lambda x: tf.while_loop(lambda y: y < 9, lambda y: [y + 1], [x]), 2),
        (lambda x: tf.switch_case(tf.cast(x, tf.int32), [lambda: x, lambda: -x]), 2),
        (tf.function(tf.sin), 1),
        (tf.sin, 0),
    ],
)
def test_each_body_is_traced_within(write, count):
    entered = []

    @contextlib.contextmanager
    def around():
        entered.append("in")
        yield
        entered.append("out")

    @tf.function(autograph=False)
    def outer(x):
        with trace_bodies_within(around):
            write(x)
        entered.append("end")
        return tf.cond(x > 0, lambda: x, lambda: -x)

    outer(tf.constant(1.0))
    assert entered == ["in", "out"] * count + ["end"]
