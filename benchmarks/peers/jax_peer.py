"""JAX: scans, a scan over sections of ``jax.checkpoint`` of scans, and blocks under ``jax.checkpoint``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from workloads import RATE, WEIGHTS_PER_BLOCK, Workload, data, weights

from . import Peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, its step to be compiled when it is first taken."""
    del name
    model = _recurrent if workload.is_recurrent else _transformer

    def loss(parameters, x, y):
        return jnp.mean((model(workload, checkpoints, parameters, x) - y) ** 2)

    def step(parameters, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
        return [p - RATE * g for p, g in zip(parameters, gradients)], value, norm

    x, y = (jnp.asarray(array) for array in data(workload))
    state = [jnp.asarray(array) for array in weights(workload)]
    compiled = jax.jit(step, donate_argnums=0)

    def run() -> tuple[float, float]:
        nonlocal state
        state, value, norm = compiled(state, x, y)
        return float(value), float(norm)

    def temporary_bytes() -> int:
        return compiled.lower(state, x, y).compile().memory_analysis().temp_size_in_bytes

    return Peer(run, temporary_bytes, _device_bytes)


def _device_bytes() -> tuple[int, int] | None:
    statistics = jax.devices()[0].memory_stats()  # None on a CPU
    return (statistics["bytes_in_use"], statistics["peak_bytes_in_use"]) if statistics else None


def _recurrent(workload, checkpoints, parameters, x):
    kernel, recurrent, bias, dense, dense_bias = parameters
    units, batch = workload.units, workload.batch

    def lstm(state, x_t):
        h, c = state
        i, f, g, o = jnp.split(x_t @ kernel + h @ recurrent + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(state, x_t):
        (h,) = state
        xz, xr, xh = jnp.split(x_t @ kernel + bias[0], 3, axis=-1)
        hz, hr, hh = jnp.split(h @ recurrent + bias[1], 3, axis=-1)
        z, r = jax.nn.sigmoid(xz + hz), jax.nn.sigmoid(xr + hr)
        h = z * h + (1 - z) * jnp.tanh(xh + r * hh)
        return (h,), h

    cell = {"lstm": lstm, "gru": gru}[workload.kind]
    zeros = jnp.zeros((batch, units))
    state = (zeros, zeros) if workload.kind == "lstm" else (zeros,)
    steps = jnp.swapaxes(x, 0, 1)
    if checkpoints:
        sections = steps.reshape(checkpoints + 1, -1, *steps.shape[1:])
        section = jax.checkpoint(lambda state, part: jax.lax.scan(cell, state, part))
        _, outputs = jax.lax.scan(section, state, sections)
        outputs = outputs.reshape(-1, batch, units)
    else:
        _, outputs = jax.lax.scan(cell, state, steps)
    return jnp.swapaxes(outputs, 0, 1) @ dense + dense_bias


def _transformer(workload, checkpoints, parameters, x):
    n = WEIGHTS_PER_BLOCK
    blocks = [parameters[i * n : (i + 1) * n] for i in range(workload.blocks)]

    def normalised(x, scale, offset):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-3) * scale + offset

    def block(x, p):
        y = normalised(x, p[0], p[1])
        q, k, v = (jnp.einsum("btw,whd->bthd", y, p[i]) + p[i + 1] for i in (2, 4, 6))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("bthd,hdw->btw", y, p[8]) + p[9]
        y = normalised(x, p[10], p[11])
        return x + jax.nn.gelu(y @ p[12] + p[13], approximate=False) @ p[14] + p[15]

    def section(x, some):
        for p in some:
            x = block(x, p)
        return x

    if not checkpoints:
        return section(x, blocks)
    for begin, end in workload.sections(checkpoints):
        x = jax.checkpoint(section)(x, blocks[begin:end])
    return x
