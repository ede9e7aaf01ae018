"""Replacement of the loop over time in Keras's recurrent layers.

All of them, ``Bidirectional`` and ``RNN`` of any cell included, run their cell in one function of
Keras's backend. Initial states, dropout masks, kept states and result types stay the layer's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
from keras.src import backend

_plain_rnn, _plain_inner_loop = backend.rnn, keras.layers.RNN.inner_loop
_through: ContextVar[Any] = ContextVar("what runs loops over time", default=None)
_layer: ContextVar[Any] = ContextVar("the layer whose loop over time runs", default=None)


@contextlib.contextmanager
def replace_time_loops(run: Callable[..., Any] | None) -> Iterator[None]:
    """Run the time loops of Keras's recurrent layers by ``run``.

    In this thread, inside the context. ``run(plain, layer, step, inputs, initial_states,
    **options)`` returns what Keras's loop ``plain(step, inputs, initial_states, **options)`` would.
    ``run=None`` restores that loop. A layer that runs on cuDNN has none.
    """
    backend.rnn, keras.layers.RNN.inner_loop = _rnn, _inner_loop
    token = _through.set(run)
    try:
        yield
    finally:
        _through.reset(token)


def time_loops_are_replaced() -> bool:
    """Whether ``replace_time_loops`` is in effect in this thread."""
    return _through.get() is not None


@functools.wraps(_plain_rnn)
def _rnn(step_function: Any, inputs: Any, initial_states: Any, **options: Any) -> Any:
    run, layer = _through.get(), _layer.get()
    if run is None or layer is None:
        return _plain_rnn(step_function, inputs, initial_states, **options)
    return run(_plain_rnn, layer, step_function, inputs, initial_states, **options)


@functools.wraps(_plain_inner_loop)
def _inner_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
    token = _layer.set(self)
    try:
        return _plain_inner_loop(self, *args, **kwargs)
    finally:
        _layer.reset(token)
