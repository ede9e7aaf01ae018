"""The networks of ``keras.applications`` in JAX, from their descriptions.

Sections stand one after the other: blocks that differ cannot be scanned.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from convolutional import Convolution
from workloads import Workload

_ACTIVATIONS = {"relu": jax.nn.relu, "relu6": jax.nn.relu6, None: lambda x: x}


def model(
    workload: Workload, checkpoints: int, parameters: dict[str, jax.Array], x: jax.Array
) -> jax.Array:
    """Return what the network computes of images ``(batch, side, side, 3)``."""
    network, sections = workload.network, workload.sections(checkpoints)

    def section(begin: int, end: int, parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        if begin == 0:
            x = _run(workload, network.stem, parameters, x)
            if network.pools:
                x = jax.lax.reduce_window(
                    x,
                    -jnp.inf,
                    jax.lax.max,
                    (1, 3, 3, 1),
                    (1, 2, 2, 1),
                    ((0, 0), (1, 1), (1, 1), (0, 0)),
                )
        x = _run(workload, network.blocks[begin:end], parameters, x)
        if end < len(network.blocks):
            return x
        x = _run(workload, network.top, parameters, x).mean((1, 2))
        return x @ parameters["predictions/kernel"] + parameters["predictions/bias"]

    for begin, end in sections:
        run = partial(section, begin, end)
        x = (jax.checkpoint(run) if checkpoints else run)(parameters, x)
    return x


def normalised(
    x: jax.Array, scale: jax.Array, offset: jax.Array, axes: tuple[int, ...], epsilon: float = 1e-3
) -> jax.Array:
    """Return ``x`` normalised over ``axes``, scaled and shifted; the epsilon is Keras's."""
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(axes, keepdims=True) + epsilon) * scale + offset


def convolved(
    x: jax.Array,
    kernel: jax.Array,
    stride: int = 1,
    padding: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> jax.Array:
    """Return the convolution of images, channels last."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [padding] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _run(workload, blocks, parameters, x):
    for block in blocks:
        y = x
        for described in block.path:
            y = _convolution(workload, described, parameters, y)
        if block.shortcut is not None:
            for described in block.shortcut:
                x = _convolution(workload, described, parameters, x)
            y = y + x
        x = _ACTIVATIONS[block.activation](y)
    return x


def _convolution(
    workload: Workload, described: Convolution, parameters: dict[str, jax.Array], x: jax.Array
) -> jax.Array:
    kernel, groups = parameters[f"{described.name}/kernel"], 1
    if described.is_depthwise:
        kernel, groups = kernel.swapaxes(2, 3), described.inputs
    y = convolved(x, kernel, described.stride, described.padding, groups)
    if workload.network.has_bias:
        y = y + parameters[f"{described.name}/bias"]
    scale, offset = (parameters[f"{described.norm}/{name}"] for name in ("gamma", "beta"))
    return _ACTIVATIONS[described.activation](
        normalised(y, scale, offset, (0, 1, 2), workload.network.epsilon)
    )
