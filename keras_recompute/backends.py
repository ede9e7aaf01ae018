"""For which backend of XLA programs are traced: that of the devices which are here, or of one that only the compiler knows.

What is best under XLA differs from backend to backend. It is decided while a function is traced, long before it is compiled,
and whoever compiles for a device that is not here says so around the trace.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CPU, GPU, TPU = "cpu", "gpu", "tpu"

_chosen: ContextVar[str | None] = ContextVar("the backend of a device that is not here", default=None)


@contextmanager
def tracing_for(backend: str) -> Iterator[None]:
    """Trace for ``backend`` inside."""
    token = _chosen.set(backend)
    try:
        yield
    finally:
        _chosen.reset(token)


def backend_now() -> str:
    """Return the backend that is traced for: as far as it can be told, since a program may run on a CPU beside a GPU too."""
    return _chosen.get() or _backend_here()


@functools.lru_cache(maxsize=None)  # Python 3.8 has no functools.cache
def _backend_here() -> str:
    import tensorflow as tf

    here = {device.device_type for device in tf.config.list_logical_devices()}
    return TPU if "TPU" in here else CPU if here == {"CPU"} else GPU
