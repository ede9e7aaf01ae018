"""Gradients of models with checkpoints in JAX's own transformations."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
from test_models_trained import X, Y, mlp

import keras_recompute as kr

L = keras.layers


def test_a_loop_of_ones_own_by_stateless_call():
    model = mlp()
    ours = kr.checkpointed(model, every=3)

    def gradients(net):
        state = [v.value for v in net.non_trainable_variables]

        def loss(weights):
            outputs, new = net.stateless_call(weights, state, X, training=True)
            return jnp.mean((outputs - Y) ** 2), new

        weights = [v.value for v in net.trainable_variables]
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(weights)

    wanted, found = gradients(model), gradients(ours)
    for plain, checkpointed in zip(*map(jax.tree.leaves, (wanted, found)), strict=True):
        np.testing.assert_allclose(checkpointed, plain, rtol=2e-5, atol=2e-6)


def test_gradients_of_gradients():
    x = inputs = keras.Input((4,))
    for _ in range(3):
        x = L.Dense(4, "tanh")(x)
    model = keras.Model(inputs, L.Dense(1)(x))
    ours = kr.checkpointed(model, every=1)
    weights = [v.value for v in model.trainable_variables]

    def penalty(net):
        def output(given, values):
            return net.stateless_call(values, [], given, training=True)[0].sum()

        def size(values):
            return jnp.sum(jax.grad(output)(X[:3, :4], values) ** 2)

        return jax.grad(size)(weights)

    for checkpointed, plain in zip(penalty(ours), penalty(model)):
        np.testing.assert_allclose(checkpointed, plain, rtol=1e-4, atol=1e-6)


def test_a_gradient_of_ones_own_reports_as_often_as_in_the_plain_model():
    reports = []

    @jax.custom_vjp
    def reporting(x):
        return x

    def backward(_, dy):
        jax.debug.callback(reports.append, dy.sum())
        return (dy,)

    reporting.defvjp(lambda x: (x, None), backward)

    class Reporting(L.Layer):
        def call(self, x):
            return reporting(x)

    x = inputs = keras.Input((4,))
    for _ in range(4):
        x = Reporting()(L.Dense(4, "tanh")(x))
    model = keras.Model(inputs, x)
    reported = []
    for net in (keras.models.clone_model(model), kr.checkpointed(model, every=4)):
        net.compile("sgd", "mse")
        net.fit(X[:, :4], X[:, :4], batch_size=len(X), epochs=2, verbose=0)
        jax.effects_barrier()
        reported.append(len(reports))
        reports.clear()
    assert reported == [2 * 4, 2 * 4]  # epochs and layers
