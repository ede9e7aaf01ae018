"""Kinds of tensors."""

import keras
import tensorflow as tf

from keras_recompute.seams.tensorflow.tensors import (
    is_composite,
    is_eager,
    is_of,
    is_trackable,
    with_flow,
)


def test_eager_tensors_are_told_from_those_of_graphs():
    assert is_eager(tf.constant(1.0))
    assert not is_eager(1.0)
    with tf.Graph().as_default():
        assert not is_eager(tf.constant(1.0))


def test_a_tensor_is_of_one_graph():
    found = []

    @tf.function
    def function(x):
        inner = tf.Graph()
        with inner.as_default():
            within = tf.constant(2.0)
        graph = x.graph
        found.extend([is_of(x, graph), is_of(within, graph), is_of(within, inner)])
        found.append(is_of("x", graph))

    x = tf.constant(1.0)
    function(x)
    assert found == [True, False, True, False]
    assert not is_of(x, tf.compat.v1.get_default_graph())


def test_composites_consist_of_tensors():
    assert is_composite(tf.ragged.constant([[1], [2, 3]]))
    assert is_composite(tf.sparse.eye(2))
    assert not is_composite(tf.constant(1.0))
    assert not is_composite(keras.KerasTensor((2,)))


def test_what_tensorflow_follows():
    assert all(
        map(
            is_trackable,
            (tf.Variable(1.0), tf.Module(), keras.layers.Dense(1), keras.optimizers.SGD()),
        )
    )
    assert not any(map(is_trackable, (1.0, {}, tf.constant(1.0), object())))


def test_an_array_goes_on_with_another_flow():
    @tf.function(autograph=False)
    def read():
        array = tf.TensorArray(tf.float32, size=1, element_shape=[]).write(0, 1.0)
        return with_flow(array, array.write(0, 2.0).flow).read(0)

    assert read() == 2.0
