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

# Functions of a backend that run all steps of a GRU or LSTM without its cell, on CPUs too.
_WHOLE_LOOPS = {"jax": ("gru",), "torch": ("gru", "lstm")}.get(backend.backend(), ())
_MASKS = "_dropout_mask", "_recurrent_dropout_mask"
_plain_rnn = backend.rnn
_plain_whole_loops = {name: getattr(backend, name) for name in _WHOLE_LOOPS}
_LAYERS = keras.layers.RNN, keras.layers.LSTM, keras.layers.GRU
_plain_inner_loops = {layer: layer.inner_loop for layer in _LAYERS}
_through: ContextVar[Any] = ContextVar("what runs loops over time", default=None)
_layer: ContextVar[Any] = ContextVar("the layer whose loop over time runs", default=None)


@contextlib.contextmanager
def replace_time_loops(run: Callable[..., Any] | None) -> Iterator[None]:
    """Run the time loops of Keras's recurrent layers by ``run``.

    In this thread, inside the context. ``run(plain, layer, step, inputs, initial_states,
    **options)`` returns what Keras's loop ``plain(step, inputs, initial_states, **options)`` would.
    ``step`` is None where that loop has its own. ``run=None`` restores Keras's loops. On TensorFlow
    and JAX a layer that runs on cuDNN has none.
    """
    backend.rnn = _rnn
    for layer, inner_loop in _inner_loops.items():
        layer.inner_loop = inner_loop
    for name, loop in _whole_loops.items():
        setattr(backend, name, loop)
    token = _through.set(run)
    try:
        yield
    finally:
        _through.reset(token)


def time_loops_are_replaced() -> bool:
    """Whether ``replace_time_loops`` is in effect in this thread."""
    return _through.get() is not None


def time_loops_now() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which loops over time run as they do now in this thread."""
    return functools.partial(replace_time_loops, _through.get())


def dropout_masks_now(
    layer: keras.layers.RNN,
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which the cells of ``layer`` have the dropout masks that they have now.

    All steps of a call share them, and the layer drops them behind its loop.
    """
    now = _dropout_masks(layer)

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        before = _dropout_masks(layer)
        _set_dropout_masks(now)
        try:
            yield
        finally:
            _set_dropout_masks(before)

    return context


def _dropout_masks(layer: keras.layers.RNN) -> list[tuple[Any, str, Any]]:
    """Return cells, each with the name of an attribute and the mask there."""
    found = []
    for cell in layer._flatten_layers(include_self=False):
        found += [(cell, name, vars(cell)[name]) for name in _MASKS if name in vars(cell)]
    return found


def _set_dropout_masks(masks: list[tuple[Any, str, Any]]) -> None:
    for cell, name, mask in masks:
        vars(cell)[name] = mask


@functools.wraps(_plain_rnn)
def _rnn(step_function: Any, inputs: Any, initial_states: Any, **options: Any) -> Any:
    run, layer = _through.get(), _layer.get()
    if run is None or layer is None:
        return _plain_rnn(step_function, inputs, initial_states, **options)
    return run(_plain_rnn, layer, step_function, inputs, initial_states, **options)


def _noting_layer(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def inner_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _layer.set(self)
        try:
            return plain(self, *args, **kwargs)
        finally:
            _layer.reset(token)

    return inner_loop


def _whole_loop(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def whole_loop(inputs: Any, *states_and_mask: Any, **options: Any) -> Any:
        run, layer = _through.get(), _layer.get()
        if run is None or layer is None:
            return plain(inputs, *states_and_mask, **options)
        *states, mask = states_and_mask
        go_backwards = options.pop("go_backwards")
        return_all = options.pop("return_sequences")

        def loop(
            _: Any,
            inputs: Any,
            states: Any,
            *,
            go_backwards: bool = False,
            return_all_outputs: bool = True,
            **__: Any,
        ) -> Any:
            return plain(
                inputs,
                *states,
                mask,
                go_backwards=go_backwards,
                return_sequences=return_all_outputs,
                **options,
            )

        # Raises NotImplementedError where Keras is to run the layer's step function.
        loop(None, inputs[:, :1], states)
        given = {"mask": mask, "go_backwards": go_backwards, "return_all_outputs": return_all}
        return run(loop, layer, None, inputs, states, **given)

    return whole_loop


_inner_loops = {layer: _noting_layer(plain) for layer, plain in _plain_inner_loops.items()}
_whole_loops = {name: _whole_loop(plain) for name, plain in _plain_whole_loops.items()}
