"""On a TPU random draws beside an exact gelu stand apart."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.backends import CPU, GPU, TPU, tracing_for

ROWS = jnp.linspace(-2.0, 2.0, 8 * 4, dtype="float32").reshape(8, 4)
KERNEL = jnp.linspace(-1.0, 1.0, 4 * 4, dtype="float32").reshape(4, 4)
KEY = jax.random.key(0)


def dropped(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0.0)


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def gelu_first(x, kernel, key):
    return dropped(gelu(x @ kernel), key)


def mask_first(x, kernel, key):
    return gelu(dropped(x @ kernel, key))


def noise(x, kernel, key):
    return gelu(x @ kernel) + jax.random.normal(key, x.shape)


def bare_bits(x, kernel, key):
    h = gelu(x @ kernel)
    return jnp.where(jax.random.bits(key, x.shape) > jnp.arange(4, dtype="uint32"), h, 0.0)


def in_a_jit(x, kernel, key):
    return jax.jit(gelu_first)(x, kernel, key)


def product_between(x, kernel, key):
    return dropped(gelu(x @ kernel) @ kernel, key)


def approximate(x, kernel, key):
    return dropped(jax.nn.gelu(x @ kernel, approximate=True), key)


def loss_by(function):
    return lambda *arguments: jnp.sum(jnp.sin(function(*arguments)))


def barriers_in(function, backend):
    with tracing_for(backend):
        traced = jax.make_jaxpr(loss_by(kr.checkpoint(function)))(ROWS, KERNEL, KEY)
    return str(traced).count("optimization_barrier")


@pytest.mark.parametrize("function", [gelu_first, mask_first, noise, bare_bits, in_a_jit])
def test_a_draw_beside_an_erf_stands_behind_a_barrier_on_a_tpu(function):
    assert [barriers_in(function, backend) for backend in (TPU, GPU, CPU)] == [1, 0, 0]


@pytest.mark.parametrize("function", [product_between, approximate])
def test_other_draws_have_no_barrier(function):
    assert barriers_in(function, TPU) == 0


@pytest.mark.parametrize(
    "function", [gelu_first, mask_first, noise, bare_bits, in_a_jit, product_between]
)
@pytest.mark.parametrize("change", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_and_gradients_stay_those_of_the_plain_function(function, change):
    def step(function):
        return change(jax.value_and_grad(loss_by(function), argnums=(0, 1)))(ROWS, KERNEL, KEY)

    wanted = step(function)
    with tracing_for(TPU):
        made = step(kr.checkpoint(function))
    for ours, plain in zip(jax.tree.leaves(made), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-6)


def test_the_mask_stands_behind_the_barrier_and_not_its_bits():
    x = inputs = keras.Input((4,))
    for name in ("first", "second"):
        h = keras.layers.Dropout(0.3)(keras.layers.Dense(4, "gelu")(x))
        x = keras.layers.Add(name=name)([x, h])
    model = kr.checkpointed(keras.Model(inputs, x), at=["first"])
    weights = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]
    with tracing_for(TPU):
        traced = jax.make_jaxpr(lambda *a: model.stateless_call(*a, training=True))(
            weights, state, ROWS
        )
    found = [line for line in str(traced).splitlines() if "optimization_barrier" in line]
    assert len(found) == 1  # behind the last checkpoint nothing is computed again
    assert "bool[8,4]" in found[0]
