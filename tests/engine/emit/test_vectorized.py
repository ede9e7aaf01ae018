"""Checkpoints in the body of a vectorised map, where TensorFlow writes each operation once more for
all elements.

What does not depend on the element stays as it is, in the same graph, where a tape around the map
must find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import assert_all_close, gradient_step, loss_and_gradients

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*saves no memory in the body of a tf.vectorized_map"
)

ROWS = np.random.default_rng(0).uniform(-1, 1, (3, 2))


def as_it_is(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return function


def of_captured(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    return wrap(lambda row: row * tf.sin(whole))(row)


def of_argument(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    return wrap(lambda row, whole: row * tf.sin(whole))(row, whole)


def of_the_whole_alone(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    return row * wrap(lambda whole: tf.sin(whole) ** 2)(whole)


def of_saved(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    options = {} if wrap is as_it_is else {"policy": kr.policies.save_everything}
    return wrap(lambda row: tf.tanh(row * tf.sin(tf.cos(whole))), **options)(row)


def of_python(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    def function(whole: tf.Tensor) -> tf.Tensor:
        factor = tf.numpy_function(np.cos, [tf.stop_gradient(whole)], whole.dtype)
        return 0.7 * whole * whole * tf.ensure_shape(factor, whole.shape)

    return row * wrap(function)(whole)


def of_a_loop(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    def function(row: tf.Tensor) -> tf.Tensor:
        turned = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, h: (i + 1, tf.sin(h) + whole),
            (0, whole),
            maximum_iterations=2,
        )[1]
        return row * tf.cond(tf.reduce_sum(whole) > 0, lambda: turned, lambda: 2 * turned)

    return wrap(function)(row)


def of_nested(wrap: Any, row: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    inner = wrap(lambda whole: tf.sin(whole) ** 2)
    return wrap(lambda row: tf.tanh(row * inner(tf.cos(whole))))(row)


@pytest.mark.parametrize("jit", [None, True], ids=["graph", "jit"])
@pytest.mark.parametrize(
    "function",
    [of_captured, of_argument, of_the_whole_alone, of_saved, of_python, of_a_loop, of_nested],
    ids=lambda function: function.__name__,
)
def test_a_tape_around_a_vectorised_map_finds_what_does_not_depend_on_the_element(
    function: Any, jit: bool | None
) -> None:
    if jit and function is of_python:
        pytest.skip("XLA calls no Python")

    def gradient(wrap: Any) -> np.ndarray:
        def mapped(x: tf.Tensor) -> tf.Tensor:
            whole = tf.cos(x)
            return tf.vectorized_map(lambda row: function(wrap, row, whole), x)

        step = gradient_step(mapped, of_inputs=True)
        found = tf.function(step, jit_compile=jit)(tf.constant(ROWS))
        return tf.convert_to_tensor(found[0]).numpy()

    np.testing.assert_allclose(gradient(kr.checkpoint), gradient(as_it_is), rtol=1e-12, atol=1e-12)


def test_a_penalty_on_a_jacobian_is_differentiated() -> None:
    """The backward program stands in the body of a vectorised map, and repeats there what does not
    depend on the element.
    """
    kernel = tf.constant(np.random.default_rng(1).normal(size=(2, 4)))

    def gradient(wrap: Any) -> np.ndarray:
        @tf.function
        def run(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = wrap(lambda x: tf.tanh(tf.sin(x) @ kernel))(x)
                penalty = tf.reduce_sum(inner.batch_jacobian(y, x) ** 2)
            return tf.convert_to_tensor(outer.gradient(penalty, x))

        return run(tf.constant(ROWS)).numpy()

    np.testing.assert_allclose(gradient(kr.checkpoint), gradient(as_it_is), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["LSTM", pytest.param("GRU", marks=pytest.mark.long)])
def test_a_recurrent_layer_in_a_vectorised_map_trains(name: str) -> None:
    sequences = np.random.default_rng(2).normal(size=(3, 5, 2)).astype("float32")

    def gradients(layer: keras.layers.Layer) -> list[np.ndarray]:
        layer.build((1, 5, 2))
        random = np.random.default_rng(3)
        layer.set_weights([random.normal(size=w.shape) for w in layer.get_weights()])

        def mapped(x: tf.Tensor) -> tf.Tensor:
            return tf.vectorized_map(lambda row: layer(row[tf.newaxis], training=True), x)

        weights = [w.value for w in layer.trainable_weights]
        return loss_and_gradients(mapped, sequences, weights=weights)

    plain = getattr(keras.layers, name)(
        3, unroll=True
    )  # TensorFlow cannot differentiate its loop here
    assert_all_close(gradients(getattr(kr, name)(3)), gradients(plain), rtol=1e-5, atol=1e-6)


def test_a_model_in_a_vectorised_map_trains() -> None:
    """The second dense layer is given what no element has a part in."""
    table = np.random.default_rng(4).normal(size=(4, 2)).astype("float32")

    def gradients(wrap: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((2,), batch_size=4)
        x = keras.layers.Dense(3, activation="tanh")(inputs)
        x = wrap(keras.layers.Dense(2, activation="tanh")(x))
        model = kr.Model(inputs, keras.layers.Dense(2, activation="tanh")(x))

        def mapped(rows: tf.Tensor) -> tf.Tensor:
            return tf.vectorized_map(lambda row: row * model(tf.sin(table), training=True), rows)

        weights = [w.value for w in model.trainable_weights]
        return loss_and_gradients(mapped, ROWS.astype(np.float32), weights=weights)

    assert_all_close(
        gradients(kr.RecomputationCheckpoint()),
        gradients(keras.layers.Identity()),
        rtol=1e-5,
        atol=1e-6,
    )


def test_gradients_of_each_element_are_those_of_plain_tensorflow() -> None:
    """Here the tape is inside of the body."""
    kernel = tf.Variable(np.random.default_rng(1).normal(size=(2, 2)))

    def gradients(wrap: Any) -> np.ndarray:
        def of_one(row: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(
                    wrap(lambda row: tf.tanh(row[tf.newaxis] @ tf.sin(kernel)))(row)
                )
            return tf.convert_to_tensor(tape.gradient(loss, kernel))

        return tf.function(lambda x: tf.vectorized_map(of_one, x))(tf.constant(ROWS)).numpy()

    np.testing.assert_allclose(
        gradients(kr.checkpoint), gradients(as_it_is), rtol=1e-12, atol=1e-12
    )


def test_a_checkpoint_in_a_vectorised_map_says_that_it_saves_nothing() -> None:
    with pytest.warns(
        kr.errors.RecomputeWarning,
        match="checkpoint of 'tanh' saves no memory in the body of a tf.vectorized_map",
    ):
        tf.vectorized_map(kr.checkpoint(tf.tanh), tf.constant(ROWS))


@pytest.mark.long
@pytest.mark.parametrize("activations", [("tanh", "gelu"), ("softplus",), ("mish",)], ids="-".join)
@pytest.mark.parametrize("pfor", [True, False], ids=["pfor", "loop"])
@pytest.mark.parametrize("of", ["x", "weights"])
def test_jacobians_of_gradients_under_jit(
    of: str, pfor: bool, activations: tuple[str, ...]
) -> None:
    """The second derivatives of these hold sums that a compiled program keeps behind branches,
    which a map cannot take.
    """
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(6, activation=each) for each in activations]
    net = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    kernel = net.trainable_variables[0]

    def jacobian(function: Any) -> np.ndarray:
        @tf.function(jit_compile=True)
        def run(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(function(x) ** 2)
                slope = inner.gradient(loss, x)
            if of == "x":
                return outer.batch_jacobian(slope, x, experimental_use_pfor=pfor)
            return outer.jacobian(slope, kernel, experimental_use_pfor=pfor)

        return run(tf.constant(np.random.default_rng(2).normal(size=(3, 4)), tf.float32)).numpy()

    np.testing.assert_allclose(jacobian(kr.checkpoint(net)), jacobian(net), rtol=1e-4, atol=1e-5)
