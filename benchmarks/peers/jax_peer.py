"""JAX: scans over timesteps or blocks, and with checkpoints a scan over ``jax.checkpoint`` of such
scans.

Equal blocks are stacked and scanned, as is usual for deep models: checkpoints between blocks
written one after the other save nothing on a CPU. Sequences are time-major, so that nothing is
turned in a step.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from workloads import (
    RATE,
    WEIGHTS_BEFORE_BLOCKS,
    WEIGHTS_PER_BLOCK,
    Workload,
    data,
    named_weights,
    weights,
)

from . import DeviceMemory, Peer, jax_networks
from .jax_networks import convolved, normalised


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, its step to be compiled when it is first taken."""
    return trained(
        training_step(name, workload, checkpoints),
        *(jax.tree.map(jnp.asarray, arrays) for arrays in arguments(workload)),
    )


def trained(compiled, state, x, y) -> Peer:
    """Return the peer that takes the step ``compiled`` from ``state`` on."""

    def run() -> tuple[float, float]:
        nonlocal state
        state, value, norm = compiled(state, x, y)
        return float(value), float(norm)

    def temporary_bytes() -> int:
        return compiled.lower(state, x, y).compile().memory_analysis().temp_size_in_bytes

    return Peer(run, temporary_bytes, device_memory())


def arguments(workload: Workload):
    """Return the arguments of the step: weights, inputs, targets.

    Those of a stack's blocks are stacked.
    """
    x, y = data(workload)
    if workload.network:
        return named_weights(workload), x, y
    if workload.is_recurrent:
        return weights(workload), x.swapaxes(0, 1), y.swapaxes(0, 1)
    arrays, n, before = (
        weights(workload),
        WEIGHTS_PER_BLOCK[workload.kind],
        WEIGHTS_BEFORE_BLOCKS.get(workload.kind, 0),
    )
    end = before + n * workload.blocks
    return (
        [arrays[:before], [np.stack(arrays[before + i : end : n]) for i in range(n)], arrays[end:]],
        x,
        y,
    )


def training_step(name: str, workload: Workload, checkpoints: int):
    """Return the step, which gives new weights, the loss and the norm of the gradients."""
    return sgd_step(_loss(name, workload, checkpoints))


def sgd_step(loss):
    """Return the step that lowers ``loss``, a function of weights, inputs and targets."""
    # On a GPU, all peers compute in float32.
    jax.config.update("jax_default_matmul_precision", "float32")

    def step(parameters, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), value, norm

    return jax.jit(step, donate_argnums=0)


def adam_step(workload: Workload, checkpoints: int):
    """Return the step with Adam (Kingma and Ba 2015), which gives a new state and the loss.

    The state are the weights, two moments like them, and the number of the step.
    """
    loss = _loss("jax", workload, checkpoints)

    def step(state, x, y):
        weights, first, second, count = state
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        rate = RATE * jnp.sqrt(1 - 0.999 ** (count + 1)) / (1 - 0.9 ** (count + 1))
        first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), first, gradients)
        second = jax.tree.map(lambda v, g: v + 0.001 * (g * g - v), second, gradients)
        updates = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + 1e-7), first, second)
        return (jax.tree.map(jnp.subtract, weights, updates), first, second, count + 1), value

    return jax.jit(step, donate_argnums=0)


def _loss(name: str, workload: Workload, checkpoints: int):
    """Return the loss, a function of weights, inputs and targets.

    The inputs of a recurrent model are projected by one product per section, or, with
    ``jax-in-loop``, a timestep at a time.
    """
    # On a GPU, all peers compute in float32.
    jax.config.update("jax_default_matmul_precision", "float32")
    if workload.is_recurrent:
        model = partial(_recurrent, workload, checkpoints, in_loop=name == "jax-in-loop")
    else:
        model = partial(jax_networks.model if workload.network else _stack, workload, checkpoints)
    return lambda parameters, x, y: jnp.mean((model(parameters, x) - y) ** 2)


def device_memory() -> DeviceMemory | None:
    """Return the allocator of the first GPU, if there is one."""
    device = jax.devices()[0]
    if not device.memory_stats():  # None on a CPU
        return None
    return DeviceMemory(
        lambda: device.memory_stats()["bytes_in_use"],
        lambda: device.memory_stats()["peak_bytes_in_use"],
    )


def _scan(section, carry, steps, checkpoints):
    """Scan ``steps`` by ``section``; with checkpoints, by equal parts of which each is replayed."""
    if not checkpoints:
        return section(carry, steps)
    parts = jax.tree.map(lambda a: a.reshape(checkpoints + 1, -1, *a.shape[1:]), steps)
    # In a scan nothing needs to be done against merging a section with its replay.
    carry, outputs = jax.lax.scan(jax.checkpoint(section, prevent_cse=False), carry, parts)
    return carry, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), outputs)


def _recurrent(workload, checkpoints, parameters, x, *, in_loop):
    kernel, recurrent, bias, dense, dense_bias = parameters
    is_lstm = workload.kind == "lstm"

    def projected(x):
        return x @ kernel + (bias if is_lstm else bias[0])

    def lstm(state, z):
        h, c = state
        i, f, g, o = jnp.split(z + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(state, z):
        (h,) = state
        xz, xr, xh = jnp.split(z, 3, axis=-1)
        hz, hr, hh = jnp.split(h @ recurrent + bias[1], 3, axis=-1)
        z, r = jax.nn.sigmoid(xz + hz), jax.nn.sigmoid(xr + hr)
        h = z * h + (1 - z) * jnp.tanh(xh + r * hh)
        return (h,), h

    cell = lstm if is_lstm else gru

    def section(state, part):
        if in_loop:
            return jax.lax.scan(lambda state, x_t: cell(state, projected(x_t)), state, part)
        return jax.lax.scan(cell, state, projected(part))

    zeros = jnp.zeros((workload.batch, workload.units))
    _, outputs = _scan(section, (zeros, zeros) if is_lstm else (zeros,), x, checkpoints)
    return outputs @ dense + dense_bias


def _stack(workload, checkpoints, parameters, x):
    before, blocks, after = parameters
    if before:
        x = (
            convolved(x, before[0], workload.patch, (0, 0)).reshape(workload.block_shape)
            + before[1]
        )
    block = {"dense": _dense, "residual": _residual}.get(workload.kind) or partial(
        _block, is_causal=workload.kind == "decoder"
    )
    x, _ = _scan(lambda x, some: jax.lax.scan(block, x, some), x, blocks, checkpoints)
    return normalised(x, *after[:2], (-1,)).mean(1) @ after[2] + after[3] if after else x


def _block(x, p, *, is_causal):
    y = normalised(x, p[0], p[1], (-1,))
    q, k, v = (jnp.einsum("btw,whd->bthd", y, p[i]) + p[i + 1] for i in (2, 4, 6))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    if is_causal:
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + jnp.einsum("bthd,hdw->btw", y, p[8]) + p[9]
    y = normalised(x, p[10], p[11], (-1,))
    return x + jax.nn.gelu(y @ p[12] + p[13], approximate=False) @ p[14] + p[15], None


def _dense(x, p):
    return jax.nn.relu(x @ p[0] + p[1]), None


def _residual(x, p):
    y = jax.nn.relu(normalised(convolved(x, p[0]), p[1], p[2], (0, 1, 2)))
    return jax.nn.relu(x + normalised(convolved(y, p[3]), p[4], p[5], (0, 1, 2))), None
