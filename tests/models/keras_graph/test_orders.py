"""Derivatives of derivatives through recomputed sections, against Keras's own layers without
checkpoints.
"""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from keras_recompute.layers.recurrent import GRU, LSTM
from keras_recompute.models.classes.model import Model
from tests.oracle import gradient_step, in_mode, sum_of_sines

from ..networks import FEATURES, SEQUENCES, dense_chain, recurrent, shared_dense, with_dropout
from ..same_training import model_pair

X = SEQUENCES[0]


def derived(function, x, mode, weights):
    """Return the gradients of the sum of ``function``, for the input and the weights."""
    options = {"weights": weights, "of_inputs": True, "unconnected": "zero"}
    step = gradient_step(function, loss=tf.reduce_sum, **options)
    return [np.asarray(tf.convert_to_tensor(g)) for g in in_mode(mode, step)(tf.constant(x))]


def slope(function, *, loss=tf.reduce_sum):
    """Return the function that computes the gradient of ``function``'s loss for its input."""
    step = gradient_step(function, weights=[], of_inputs=True, loss=loss)
    return lambda x: step(x)[0]


def penalty(model, x, mode):
    """Return the gradient of the squared norm of a gradient, as a gradient penalty has it, for the
    input and all weights.
    """
    first = slope(model, loss=sum_of_sines)
    variables = [v.value for v in model.trainable_variables]
    return derived(lambda x: first(x) ** 2 * tf.cos(x), x, mode, variables)


def assert_close(ours, plain):
    assert any(np.abs(g).max() > 1e-3 for g in plain)
    for a, b in zip(ours, plain, strict=True):
        # A sum of terms near 1 that cancel, as the last bias's 0.0018, keeps the rounding of its
        # terms: some 6e-8 each.
        np.testing.assert_allclose(a, b, atol=2e-5 * max(np.abs(b).max(), 1e-2))


@pytest.mark.long
def test_second_derivatives_through_a_loop_of_fused_sections():
    models = []
    for model_class, cell in ((Model, LSTM), (keras.Model, keras.layers.LSTM)):
        keras.utils.set_random_seed(1)
        models.append(recurrent(model_class, 2, cell=cell, length=3))
    models[1].set_weights(models[0].get_weights())
    assert models[0].plan.recomputes
    assert_close(penalty(models[0], X[:, :3], "jit"), penalty(models[1], X[:, :3], "graph"))


@pytest.mark.long
def test_second_derivatives_through_levels_of_loops_in_eager_code():
    ours, plain = model_pair(
        lambda model_class: recurrent(model_class, 4, cell=keras.layers.SimpleRNN, length=5)
    )
    ours.recomputation_levels = 2
    assert_close(penalty(ours, X[:, :5], "eager"), penalty(plain, X[:, :5], "graph"))


@pytest.mark.parametrize(
    "build",
    [pytest.param(dense_chain, marks=pytest.mark.long), shared_dense],
    ids=lambda build: build.__name__,
)
def test_second_derivatives_through_other_sections(build):
    ours, plain = model_pair(build)
    assert_close(penalty(ours, X[:, 0], "graph"), penalty(plain, X[:, 0], "graph"))


def third_order(model, x, mode):
    """Return the third derivatives along one direction, for the input and all weights."""
    first = slope(model, loss=sum_of_sines)
    second = slope(lambda x: first(x) * tf.cos(x))
    variables = [v.value for v in model.trainable_variables]
    return derived(lambda x: second(x) * tf.sin(2.0 * x), x, mode, variables)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["graph", "eager", "jit"])
def test_third_derivatives_through_sections(mode):
    ours, plain = model_pair(dense_chain)
    assert ours.plan.recomputes
    assert_close(third_order(ours, X[:, 0], mode), third_order(plain, X[:, 0], "graph"))


def test_second_derivatives_see_the_one_dropout_mask():
    """Outputs are linear in the input where no mask hides it, so the mask shows in every
    derivative.
    """
    ours, _ = model_pair(with_dropout)
    x = tf.constant(np.ones((2, 32), np.float32))

    @tf.function(autograph=False)
    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = ours(x, training=True)
                loss = tf.reduce_sum(y**2)
            first = inner.gradient(loss, x)
        return y, first, outer.gradient(first, x, output_gradients=tf.ones_like(x))

    y, first, second = run(x)
    # loss = |A x + b|^2: first = 2 A' y, second = 2 A' A 1, and first - second = 2 A' b at x = 1
    bias = ours(tf.zeros_like(x), training=False)
    assert 0.3 < np.mean(y.numpy() == 0) < 0.7
    assert np.isfinite(second).all()
    assert np.any(bias != 0)
    kept = np.any(first.numpy() != 0, axis=0)
    np.testing.assert_array_equal(kept, np.any(second.numpy() != 0, axis=0))


@pytest.mark.long
def test_traces_of_a_model_leave_nothing_behind():
    """tf.custom_gradient would keep an entry of TensorFlow's registry for each use, and with it the
    graph.
    """
    model = recurrent(Model, 2, cell=GRU, length=3)

    def trace():
        step = tf.function(gradient_step(model, loss=tf.reduce_sum), autograph=False)
        step.get_concrete_function(tf.TensorSpec((4, 3, FEATURES)))

    def alive():
        gc.collect()
        return sum(isinstance(o, FuncGraph) for o in gc.get_objects()), len(
            ops.gradient_registry.list()
        )

    trace()
    before = alive()
    for _ in range(3):
        trace()
    assert alive() == before
