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

from ..seams.keras.variables import has_value


def variable_spec(variable: Any) -> jax.ShapeDtypeStruct:
    """Return type and shape of a Keras variable, and how it is divided."""
    distribution, sharding = keras.distribution.distribution(), None
    if distribution is not None:
        layout = distribution.get_variable_layout(variable)
        # The optimizer's counters are made before a layout is known.
        sharding = layout.backend_layout if not has_value(variable) else variable.value.sharding
    return jax.ShapeDtypeStruct(variable.shape, jnp.dtype(variable.dtype), sharding=sharding)


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
