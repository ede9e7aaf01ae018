"""Replacement of the convolutions of Keras's backend, which all of its layers and operations call.

``keras.ops.separable_conv`` calls that of depthwise kernels.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from keras.src import backend

_NAMES = "conv", "depthwise_conv"
_through: ContextVar[Any] = ContextVar("what runs convolutions", default=None)


@contextlib.contextmanager
def replace_convolutions(run: Callable[..., Any]) -> Iterator[None]:
    """Run Keras's convolutions by ``run``, in this thread, inside the context.

    ``run(plain, inputs, kernel, **options)`` returns what Keras's function ``plain(inputs,
    kernel)`` does with its ``options``: ``strides``, ``padding``, ``data_format`` and
    ``dilation_rate``. Kernels are ``(*window, channels of a group, features)``; depthwise ones
    have ``(*window, channels, features of a channel)``.
    """
    for name in _NAMES:
        setattr(backend.nn, name, _replaced[name])
    token = _through.set(run)
    try:
        yield
    finally:
        _through.reset(token)


def _through_run(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def convolve(
        inputs: Any,
        kernel: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
    ) -> Any:
        options = {
            "strides": strides,
            "padding": padding,
            "data_format": data_format,
            "dilation_rate": dilation_rate,
        }
        run = _through.get()
        if run is None:
            return plain(inputs, kernel, **options)
        return run(plain, inputs, kernel, **options)

    return convolve


_replaced = {name: _through_run(getattr(backend.nn, name)) for name in _NAMES}
