"""Temporaries of a training step on JAX, by its compiler."""

import jax
import jax.numpy as jnp


def temporaries(model, x, y):
    """Return the MiB of temporaries of a compiled training step with SGD."""
    state = [v.value for v in model.non_trainable_variables]

    def step(weights, state, x, y):
        def loss(weights):
            outputs, new = model.stateless_call(weights, state, x, training=True)
            return jnp.mean((outputs - y) ** 2), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return value, new, [w - 0.01 * g for w, g in zip(weights, gradients)]

    weights = [v.value for v in model.trainable_variables]
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(weights, state, x, y)
    return lowered.compile().memory_analysis().temp_size_in_bytes / 2**20
