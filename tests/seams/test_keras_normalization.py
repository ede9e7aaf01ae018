"""The gradient of Keras's batch normalisation by one kernel."""

import keras
import numpy as np
import tensorflow as tf

from keras_recompute.seams.keras.normalization import fuse_batch_norm_gradient
from tests.oracle import assert_all_close

FUSED = "FusedBatchNormGradV3"
X = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 4, 2)), tf.float32)


def step_of(layer):
    """Return what a traced step computes, its new statistics and the types of its operations."""

    @tf.function(autograph=False)
    def step(x):
        y = layer(x, training=True)
        return y, tf.gradients(
            tf.reduce_sum(tf.sin(y)), [x, *(v.value for v in layer.trainable_variables)]
        )

    for variable, value in zip(layer.non_trainable_variables, (0.0, 1.0)):
        variable.assign(tf.fill(variable.shape, value))
    traced = step.get_concrete_function(X)
    y, gradients = traced(X)
    kinds = {operation.type for operation in traced.graph.get_operations()}
    return [y, *layer.non_trainable_variables], gradients, kinds


def built(kind=keras.layers.BatchNormalization, **options):
    layer = kind(**options)
    layer.build(X.shape)
    return layer


def test_inside_the_context_the_gradient_is_one_operation_and_the_rest_is_the_same_to_the_bit():
    layer = built()
    with fuse_batch_norm_gradient():
        values, gradients, kinds = step_of(layer)
    values = [np.array(value) for value in values]
    assert FUSED in kinds
    wanted, wanted_gradients, kinds = step_of(layer)
    assert FUSED not in kinds
    for found, plain in zip(values, wanted, strict=True):
        np.testing.assert_array_equal(found, plain)
    assert_all_close(gradients, wanted_gradients, rtol=1e-5, atol=1e-5)


def test_a_tape_within_the_trace_finds_the_same():
    layer = built()

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, training=True)))
        return tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])

    with fuse_batch_norm_gradient():
        gradients = step(X)
    assert_all_close(gradients, step_of(layer)[1], rtol=1e-5, atol=1e-5)


def test_two_layers_of_different_epsilon_keep_theirs():
    for epsilon in (1e-3, 0.5):
        layer = built(epsilon=epsilon)
        with fuse_batch_norm_gradient():
            gradients = step_of(layer)[1]
        assert_all_close(gradients, step_of(layer)[1], rtol=1e-5, atol=1e-5)


def test_a_class_with_moments_of_its_own_keeps_them():
    class OfHalf(keras.layers.BatchNormalization):
        def _moments(self, inputs, mask):
            return super()._moments(inputs / 2, mask)

    with fuse_batch_norm_gradient():
        assert FUSED not in step_of(built(OfHalf))[2]


def test_eagerly_it_is_keras_own():
    layer = built()
    with fuse_batch_norm_gradient():
        found = layer(X, training=True)
    np.testing.assert_array_equal(found, layer(X, training=True))
