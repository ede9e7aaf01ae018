"""Batch normalisation of Keras's by one kernel."""

import keras
import numpy as np
import tensorflow as tf

from keras_recompute.seams.keras.normalization import batch_normalization_fused

X = tf.constant(np.random.default_rng(0).normal(size=(3, 5, 4, 2)), tf.float32)


def kinds_of(layer):
    graph = tf.function(lambda: layer(X, training=True), autograph=False).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def test_inside_the_context_it_is_one_operation():
    layer = keras.layers.BatchNormalization()
    layer.build(X.shape)
    with batch_normalization_fused():
        assert "FusedBatchNormV3" in kinds_of(layer)
        fused, statistics = layer(X, training=True), [v.numpy() for v in layer.non_trainable_variables]
    assert "FusedBatchNormV3" not in kinds_of(layer)
    for variable, value in zip(layer.non_trainable_variables, (0.0, 1.0)):
        variable.assign(tf.fill(variable.shape, value))
    np.testing.assert_allclose(fused, layer(X, training=True), rtol=1e-5, atol=1e-5)
    for found, variable in zip(statistics, layer.non_trainable_variables, strict=True):
        np.testing.assert_allclose(found, variable, rtol=1e-5, atol=1e-6)


def test_a_class_with_moments_of_its_own_keeps_them():
    class OfHalf(keras.layers.BatchNormalization):
        def _moments(self, inputs, mask):
            return super()._moments(inputs / 2, mask)

    layer = OfHalf()
    layer.build(X.shape)
    with batch_normalization_fused():
        assert "FusedBatchNormV3" not in kinds_of(layer)
