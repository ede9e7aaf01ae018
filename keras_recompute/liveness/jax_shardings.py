"""How the arrays of a training step are divided among devices by ``keras.distribution`` on JAX.

Without a distribution all are on one device. With one, the program of one device is compiled: its
parameters and temporaries are that device's share.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import keras

from ..errors import InvalidArgumentError
from ..seams.keras.variables import has_value


def variable_spec(variable: Any) -> jax.ShapeDtypeStruct:
    """Return type and shape of a Keras variable, and how it is divided.

    Raises InvalidArgumentError where its layout cannot divide that shape.
    """
    distribution, sharding = keras.distribution.distribution(), None
    if distribution is not None:
        layout = distribution.get_variable_layout(variable)
        # The optimizer's counters are made before a layout is known.
        sharding = layout.backend_layout if not has_value(variable) else variable.value.sharding
        _check_divisible(variable, sharding)
    return jax.ShapeDtypeStruct(variable.shape, jnp.dtype(variable.dtype), sharding=sharding)


def _check_divisible(variable: Any, sharding: Any) -> None:
    try:
        # Without values Keras places nothing, so that nothing has asked before.
        sharding.shard_shape(tuple(variable.shape))
    except ValueError as error:  # JAX's does not name the variable
        mesh = "x".join(map(str, sharding.mesh.devices.shape))
        raise InvalidArgumentError(
            f"{variable.path} has the shape {tuple(variable.shape)}, and its layout "
            f"{tuple(sharding.spec)} cannot divide that on a mesh of {mesh} devices: choose "
            "another mesh, or a layout_map that leaves this axis whole"
        ) from error


def divided_batch(data: Any) -> Any:
    """Return ``data``, a nest of types and shapes, as ``fit`` divides it."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return data

    def divided(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        layout = distribution.get_data_layout(spec.shape)
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=layout.backend_layout)

    return jax.tree.map(divided, data)


def share_bytes(spec: Any) -> int:
    """Return the bytes that one device has of an array of ``spec``."""
    sharding = getattr(spec, "sharding", None)
    shape = spec.shape if sharding is None else sharding.shard_shape(spec.shape)
    return math.prod(shape) * spec.dtype.itemsize


def shardings_of(specs: Any) -> Any:
    """Return how the arrays of ``specs`` are divided; None where there is no distribution."""
    if keras.distribution.distribution() is None:
        return None
    return jax.tree.map(lambda spec: spec.sharding, specs)
