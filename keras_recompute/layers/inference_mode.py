"""Whether a recurrence runs for its results alone, on JAX and PyTorch.

``engine.graph`` and ``scan`` have the same for TensorFlow, where a program is rewritten for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Values = Sequence[Any]

_inference: ContextVar[bool] = ContextVar("a recurrence runs for its results alone", default=False)


@contextmanager
def inference() -> Iterator[None]:
    """Say that recurrences in this context are not differentiated."""
    token = _inference.set(True)
    try:
        yield
    finally:
        _inference.reset(token)


def is_inference() -> bool:
    """Whether no gradient will be asked for."""
    return _inference.get()


def inference_alternative(values: Values, _: Callable[[], Values]) -> Values:
    """Return ``values``: what is faster without a gradient was chosen by ``is_inference``."""
    return values


def replay_alternative(values: Values, _: Callable[[], Values], *, given: Values) -> Values:
    """Return ``values``: a section is replayed whole, so none of its outputs are ``given``."""
    del given
    return values
