"""The question that Keras's JAX backend asks before a recurrent layer runs on cuDNN."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The package has a function of the same name.
rnn: Any = importlib.import_module("keras.src.backend.jax.rnn")


@contextmanager
def without_cudnn(left_out: Callable[[], None]) -> Iterator[None]:
    """Inside the context Keras's recurrent layers run by their own loops, as without a GPU.

    ``left_out`` is called for each layer that would run on cuDNN if there were a GPU. On JAX Keras
    runs none so up to 3.14.
    """
    plain_ok, plain_gpu = rnn.cudnn_ok, getattr(rnn, "_is_gpu_available", None)

    def cudnn_ok(*args: Any, **kwargs: Any) -> bool:
        rnn._is_gpu_available = lambda: True
        try:
            if plain_ok(*args, **kwargs):
                left_out()
        finally:
            rnn._is_gpu_available = plain_gpu
        return False

    rnn.cudnn_ok = cudnn_ok
    try:
        yield
    finally:
        rnn.cudnn_ok = plain_ok
