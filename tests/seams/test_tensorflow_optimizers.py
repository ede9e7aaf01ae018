"""The arguments of TensorFlow 1's optimisers can be read."""

import tensorflow as tf

from keras_recompute.seams.tensorflow.optimizers import constructor_arguments


def test_what_optimizers_were_constructed_with():
    train = tf.compat.v1.train
    assert constructor_arguments(train.GradientDescentOptimizer(0.5)) == (
        "GradientDescentOptimizer",
        {"learning_rate": 0.5},
    )
    assert constructor_arguments(train.MomentumOptimizer(0.5, 0.9, use_nesterov=True)) == (
        "MomentumOptimizer",
        {"learning_rate": 0.5, "momentum": 0.9, "nesterov": True},
    )
    assert constructor_arguments(train.AdamOptimizer(0.5, 0.8, 0.7, 0.1)) == (
        "AdamOptimizer",
        {"learning_rate": 0.5, "beta_1": 0.8, "beta_2": 0.7, "epsilon": 0.1},
    )
    assert constructor_arguments(train.AdadeltaOptimizer()) is None
