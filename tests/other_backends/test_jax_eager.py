"""Gradients outside of ``jax.jit``, where operations run one by one: no call compiles anew."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_recompute as kr

L = keras.layers
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(4, 16)), "float32")
W = jnp.asarray(RNG.normal(size=(16, 16)) / 4, "float32")
EXACT = {"rtol": 0, "atol": 0}
IMAGES = RNG.normal(size=(4, 8, 8, 4)).astype("float32")


@pytest.fixture
def compiled():
    """Return a list that grows by one with each program that JAX compiles."""
    programs, is_counting = [], [True]

    def note(event, *_, **__):
        if is_counting and event == "/jax/core/compile/backend_compile_duration":
            programs.append(event)

    # JAX's public interface removes no listener.
    jax.monitoring.register_event_duration_secs_listener(note)
    jax.jit(lambda x: x + 1)(X)
    assert programs  # else nothing that is counted would say anything
    yield programs
    is_counting.clear()


def block(x, w):
    return jnp.sin(jnp.tanh(kr.checkpoint_name(x @ w, "product")))


def loss_of(function):
    return lambda w: function(function(X, w), w).sum()


GRADIENTS = {
    "first": jax.grad,
    "second": lambda loss: jax.grad(lambda w: jax.grad(loss)(w).sum()),
    "vmap around": lambda loss: lambda w: jax.vmap(jax.grad(loss))(jnp.stack([w, 2 * w])),
    "vmap inside": lambda loss: jax.grad(lambda w: jax.vmap(loss)(jnp.stack([w, 2 * w])).sum()),
}
POLICIES = {"nothing": kr.policies.save_nothing, "names": kr.policies.save_names("product")}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_are_those_of_the_function_and_compile_once(kind, policy, compiled):
    wanted = GRADIENTS[kind](loss_of(block))(W)
    gradient = GRADIENTS[kind](loss_of(kr.checkpoint(block, policy=POLICIES[policy])))
    # Gradients of gradients add up the same numbers in another order.
    close = {"rtol": 1e-4, "atol": 2e-5} if kind == "second" else EXACT
    np.testing.assert_allclose(gradient(W), wanted, **close)
    compiled.clear()
    for _ in range(3):
        gradient(W)
    assert not compiled


def dense():
    for _ in range(2):
        yield from (L.Dense(16, "gelu"), L.Dropout(0.5, seed=1), L.BatchNormalization())


def repeated():
    return [L.Dense(16, "relu") for _ in range(6)]


def convolutional():
    options = {"padding": "same", "activation": "relu"}
    yield L.Conv2D(4, 3, **options)
    yield L.DepthwiseConv2D(3, **options)
    yield L.MaxPooling2D(2)
    yield L.Conv2D(4, 3, groups=2, **options)


def model_of(layers, shape):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input(shape)
    for layer in layers():
        x = layer(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("layers", [dense, repeated, convolutional])
def test_a_model_that_runs_eagerly_trains_as_the_plain_one_and_compiles_once(layers, compiled):
    x = IMAGES if layers is convolutional else np.asarray(X)
    plain, ours = (model_of(layers, x.shape[1:]) for _ in range(2))
    y = np.ones((len(x), *plain.output.shape[1:]), "float32")
    losses = []
    for net in (plain, kr.checkpointed(ours, every=2)):
        net.compile("sgd", "mse", run_eagerly=True)
        losses.append([net.train_on_batch(x, y) for _ in range(2)])
    # The gradient of a depthwise kernel is another sum of the same products.
    close = {"rtol": 1e-6, "atol": 1e-6} if layers is convolutional else EXACT
    np.testing.assert_allclose(losses[1], losses[0], **close)
    for found, wanted in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, **close)
    compiled.clear()
    net.train_on_batch(x, y)
    assert not compiled


def test_what_is_compiled_waits_in_branches_even_of_values_that_are_known():
    gradient = jax.grad(loss_of(kr.checkpoint(block)))
    of_known_values = jax.make_jaxpr(lambda: gradient(W))()
    assert str(of_known_values).count("cond[") == 2  # one for each call


def test_a_gradient_that_is_compiled_behind_a_call_that_ran_at_once_waits_in_branches():
    _, pull_back = jax.vjp(loss_of(kr.checkpoint(block)), W)
    one = jnp.float32(1)
    assert str(jax.make_jaxpr(pull_back)(one)).count("cond[") == 2
    np.testing.assert_array_equal(pull_back(one)[0], jax.grad(loss_of(block))(W))
