"""The XLA backend that programs are traced for: the local device's, or one chosen by a context.

What is best under XLA differs between backends, and is decided while a function is traced, long
before it is compiled. Compiling for a device that is not installed here therefore wraps the trace
in ``tracing_for``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CPU, GPU, TPU = "cpu", "gpu", "tpu"

_chosen: ContextVar[str | None] = ContextVar(
    "the backend of a device that is not here", default=None
)


@contextmanager
def tracing_for(backend: str) -> Iterator[None]:
    """Trace for ``backend`` inside the context."""
    token = _chosen.set(backend)
    try:
        yield
    finally:
        _chosen.reset(token)


def described_backend() -> str | None:
    """Return the backend of a device that is not here, for which a trace runs; else None."""
    return _chosen.get()


def backend_now() -> str:
    """Return the backend that is traced for.

    With a GPU present it is the GPU's, although a function may be placed on the CPU: the trace
    does not know.
    """
    return _chosen.get() or _backend_here()


@functools.lru_cache(maxsize=None)  # Python 3.8 has no functools.cache
def _backend_here() -> str:
    import tensorflow as tf

    here = {device.device_type for device in tf.config.list_logical_devices()}
    return TPU if "TPU" in here else CPU if here == {"CPU"} else GPU
