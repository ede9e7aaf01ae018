"""The compiler of the graph under construction: XLA, or TensorFlow, which runs it operation by operation."""

from __future__ import annotations

import tensorflow as tf

from ..seams.tensorflow.xla import is_for_xla


def under_xla() -> bool:
    """Whether the graph under construction is traced for ``jit_compile=True``, in which case XLA's operations exist."""
    return is_for_xla(tf.compat.v1.get_default_graph())


def under_xla_on_cpu() -> bool:
    """Whether that is XLA for a CPU, as far as it can be told: this process has no other device."""
    return under_xla() and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
