"""Sparse arrays of JAX as inputs and results of what is recomputed."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import sparse

import keras_recompute as kr

L = keras.layers
WIDTH = 16
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(8, WIDTH)) * (RNG.random((8, WIDTH)) < 0.25)
X = sparse.BCOO.fromdense(jnp.asarray(DENSE, "float32"))
Y = np.ones((8, WIDTH), "float32")
CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # a section is compiled on its own


def at_the_beginning(inputs):
    x = inputs
    for _ in range(5):
        x = L.Dense(WIDTH, "gelu")(x)
    return x


def in_all_sections(inputs):
    x = inputs
    for _ in range(4):
        x = L.Dense(WIDTH, "tanh")(x) + L.Dense(WIDTH)(inputs)
    return x


def as_a_result(inputs):
    return at_the_beginning(keras.ops.negative(keras.ops.negative(inputs)))  # still a sparse array


def model_of(layers):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((WIDTH,), sparse=True)
    return keras.Model(inputs, layers(inputs))


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("layers", [at_the_beginning, in_all_sections, as_a_result])
def test_a_model_with_a_sparse_input_trains_as_the_plain_one(layers, every, eagerly):
    plain, ours = model_of(layers), kr.checkpointed(model_of(layers), every=every)
    losses = []
    for net in (plain, ours):
        net.compile("sgd", "mse", run_eagerly=eagerly)
        losses.append([net.train_on_batch(X, Y) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], **CLOSE)
    for found, wanted in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize("policy", [None, kr.policies.save_matmuls])
def test_a_function_takes_and_returns_sparse_arrays_and_has_their_gradients(policy):
    weights = jnp.asarray(RNG.normal(size=(WIDTH, WIDTH)), "float32")

    def scaled(x, w):
        return 2 * x, jnp.tanh(x @ w)

    def loss_of(function):
        def loss(data, w):
            twice, hidden = function(sparse.BCOO((data, X.indices), shape=X.shape), w)
            return jnp.sum(hidden**2) + jnp.sum(jnp.sin(twice.data))

        return jax.grad(loss, argnums=(0, 1))

    wanted = loss_of(scaled)(X.data, weights)
    found = loss_of(kr.checkpoint(scaled, policy=policy))(X.data, weights)
    for ours, plain in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, plain)
