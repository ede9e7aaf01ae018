"""JAX: scans over timesteps or blocks, and with checkpoints a scan over ``jax.checkpoint`` of such scans.

Blocks are stacked and scanned, as is usual for deep models: checkpoints between blocks written one after the other save
nothing on a CPU. Sequences are time-major, so that nothing is turned in a step.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from workloads import RATE, WEIGHTS_PER_BLOCK, Workload, data, weights

from . import DeviceMemory, Peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, its step to be compiled when it is first taken."""
    compiled = training_step(name, workload, checkpoints)
    state, x, y = (jax.tree.map(jnp.asarray, arrays) for arrays in arguments(workload))

    def run() -> tuple[float, float]:
        nonlocal state
        state, value, norm = compiled(state, x, y)
        return float(value), float(norm)

    def temporary_bytes() -> int:
        return compiled.lower(state, x, y).compile().memory_analysis().temp_size_in_bytes

    return Peer(run, temporary_bytes, device_memory())


def arguments(workload: Workload):
    """Return the arguments of the step: weights, inputs, targets."""
    x, y = data(workload)
    if workload.is_recurrent:
        return weights(workload), x.swapaxes(0, 1), y.swapaxes(0, 1)
    arrays, n = weights(workload), WEIGHTS_PER_BLOCK[workload.kind]
    return [np.stack(arrays[i::n]) for i in range(n)], x, y


def training_step(name: str, workload: Workload, checkpoints: int):
    """Return the step, which gives new weights, the loss and the norm of the gradients.

    The inputs of a recurrent model are projected by one product per section, or, with ``jax-in-loop``, a timestep at a time.
    """
    jax.config.update("jax_default_matmul_precision", "float32")  # on a GPU, all peers compute in float32
    if workload.is_recurrent:
        model = partial(_recurrent, workload, checkpoints, in_loop=name == "jax-in-loop")
    else:
        model = partial(_stack, {"transformer": _block, "dense": _dense, "residual": _residual}[workload.kind], checkpoints)

    def loss(parameters, x, y):
        return jnp.mean((model(parameters, x) - y) ** 2)

    def step(parameters, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
        return [p - RATE * g for p, g in zip(parameters, gradients)], value, norm

    return jax.jit(step, donate_argnums=0)


def device_memory() -> DeviceMemory | None:
    """Return the allocator of the first GPU, if there is one."""
    device = jax.devices()[0]
    if not device.memory_stats():  # None on a CPU
        return None
    return DeviceMemory(lambda: device.memory_stats()["bytes_in_use"], lambda: device.memory_stats()["peak_bytes_in_use"])


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


def _stack(block, checkpoints, parameters, x):
    x, _ = _scan(lambda x, blocks: jax.lax.scan(block, x, blocks), x, parameters, checkpoints)
    return x


def _normalised(x, scale, offset, axes=(-1,)):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(axes, keepdims=True) + 1e-3) * scale + offset


def _block(x, p):
    y = _normalised(x, p[0], p[1])
    q, k, v = (jnp.einsum("btw,whd->bthd", y, p[i]) + p[i + 1] for i in (2, 4, 6))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + jnp.einsum("bthd,hdw->btw", y, p[8]) + p[9]
    y = _normalised(x, p[10], p[11])
    return x + jax.nn.gelu(y @ p[12] + p[13], approximate=False) @ p[14] + p[15], None


def _dense(x, p):
    return jax.nn.relu(x @ p[0] + p[1]), None


def _residual(x, p):
    def convolved(x, kernel, scale, offset):
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return _normalised(y, scale, offset, axes=(0, 1, 2))

    return jax.nn.relu(x + convolved(jax.nn.relu(convolved(x, *p[:3])), *p[3:])), None
