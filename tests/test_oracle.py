"""The oracle itself, against derivatives by hand; and its comparisons fail where they should."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.oracle import (
    MODES,
    assert_all_close,
    assert_near,
    assert_same_training,
    loss_and_gradients,
    mean_square,
    outputs_and_gradients,
    weights_like,
)

X = np.array([[1.0, 2.0]], "float32")


@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradients_of_a_function_and_of_a_layer(mode):
    w = tf.Variable([3.0, 4.0])
    # Of (x w)^2: 2 x w^2 and 2 x^2 w.
    found = loss_and_gradients(lambda x: x * w, X, mode=mode, weights=[w], of_inputs=True)
    assert_all_close(found, [9 + 64, [[18.0, 64.0]], [6.0, 32.0]])
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    layer.build((1, 2))
    # Of (x k + b)^2 = 9: 2 * 3 * x for the kernel, 2 * 3 for the bias.
    found = loss_and_gradients(layer, X, mode=mode, loss=mean_square)
    assert_all_close(found, [9, [[6.0], [12.0]], [6.0]])


@pytest.mark.parametrize("mode", MODES)
def test_each_element_of_an_output_has_a_weight_of_its_own(mode):
    outputs, gradients = outputs_and_gradients(lambda x: (2 * x, 3 * x), [X], mode=mode)
    assert_all_close(outputs, [2 * X, 3 * X])
    weights = [weights_like(outputs[number], number).numpy() for number in range(2)]
    assert len(set(np.ravel(weights))) == 3  # cos(0) twice
    assert_all_close(gradients, [2 * weights[0] + 3 * weights[1]])


@pytest.mark.parametrize(
    ("compare", "ours", "plain"),
    [
        (assert_all_close, [1.0], [1.0, 2.0]),
        (assert_all_close, [1.0], [1.1]),
        (lambda a, b: assert_near(a, b, 1e-5), [[1.0, 2.0]], [[1.0, 2.1]]),
        (lambda a, b: assert_near(a, b, 1e-5), [[0.0]], [[0.0]]),
        (lambda a, b: assert_near(a, b, 1e-5), [[1.0]], [[1.0], [2.0]]),
    ],
)
def test_a_difference_fails(compare, ours, plain):
    with pytest.raises(AssertionError):
        compare(ours, plain)


def test_models_that_train_otherwise_fail():
    inputs = keras.Input((2,))
    models = [
        keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=start)(inputs))
        for start in ("ones", "ones", "zeros")
    ]
    same, plain, other = models
    assert_same_training(same, plain, X, X[:, :1], epochs=2)
    with pytest.raises(AssertionError):
        assert_same_training(other, plain, X, X[:, :1])
