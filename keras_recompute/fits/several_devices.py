"""How a model is divided among several devices of one kind, by ``keras.distribution``."""

from __future__ import annotations

from typing import Any

import keras

from ..errors import InvalidArgumentError

_AXES = "batch", "model"


def distribute(cls: Any, batch_parts: int, weight_parts: int) -> None:
    """Set the distribution for models of ``cls``, or of a class that is not known: None.

    The batch is divided into ``batch_parts``. Weights are divided among all devices where the class
    says how, as some of KerasHub do by ``get_layout_map``. Else each device has all of them. Raises
    InvalidArgumentError for ``weight_parts`` where the class does not say it, and where JAX has
    fewer devices.
    """
    count = batch_parts * weight_parts
    if count == 1:
        return
    devices = keras.distribution.list_devices()[:count]
    if len(devices) < count:
        raise InvalidArgumentError(
            f"--devices asks for {count}, and JAX was started with {len(devices)} here: set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before it is imported"
        )
    if hasattr(cls, "get_layout_map"):
        mesh = keras.distribution.DeviceMesh((batch_parts, weight_parts), _AXES, devices)
        layouts = cls.get_layout_map(mesh)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name=_AXES[0])
        )
    elif weight_parts > 1:
        name = "functions and files" if cls is None else f"models of {cls.__name__}"
        raise InvalidArgumentError(
            f"--devices {batch_parts}x{weight_parts} divides the weights, and {name} have no "
            "get_layout_map that says how: give one number, or call "
            "keras.distribution.set_distribution in a function that makes the model"
        )
    else:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))


def batch_parts() -> int:
    """Return into how many parts the batch is divided."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])
