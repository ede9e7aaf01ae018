"""What ``seams/tensorflow/vectorized_map.py`` reads."""

from __future__ import annotations

import tensorflow as tf

from keras_recompute.seams.tensorflow.vectorized_map import is_in_vectorized_body


def test_the_body_of_a_vectorised_map_is_known_in_its_own_graph_alone() -> None:
    found: dict[str, bool] = {}

    def note(where: str) -> None:
        found[where] = is_in_vectorized_body(tf.compat.v1.get_default_graph())

    def body(row: tf.Tensor) -> tf.Tensor:
        note("in the body")
        return tf.function(inner)(row)

    def inner(row: tf.Tensor) -> tf.Tensor:
        note("in a function in the body")
        return row

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        note("before")
        y = tf.vectorized_map(body, x)
        note("after")
        return y

    outer(tf.ones((3, 2)))
    assert found == {
        "before": False,
        "in the body": True,
        "in a function in the body": False,
        "after": False,
    }
