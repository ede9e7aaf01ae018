"""Scans over time and matrix products over all timesteps on JAX: see ``scan`` for what they do.

Loops carry whole arrays and write into them, as XLA does in place. The results of a
``jax.lax.scan`` would be new arrays beside what it was given. Sequences are
``(batch, time, size)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from ..backends import GPU, described_backend

Arrays = Sequence[jax.Array]


def runs_on_cudnn(layer: keras.layers.RNN) -> bool:
    """Whether Keras runs ``layer`` on cuDNN, and it should: an LSTM with ``use_cudnn=True``.

    On an H200 our own loop took 0.7 of its time and a quarter of its memory. JAX has cuDNN's LSTM
    for float32 alone; of other types it makes wrong numbers.
    """
    is_asked = isinstance(layer, keras.layers.LSTM) and layer.use_cudnn is True
    is_known = layer.compute_dtype == "float32" and described_backend() is None
    return is_asked and is_known and jax.default_backend() == GPU


def delay_until(array: jax.Array, made: jax.Array) -> jax.Array:
    """Return ``array``; on GPUs and TPUs what follows from it is computed after ``made``."""
    return lax.optimization_barrier((array, made))[0]


class Steps:
    """A sequence that a loop reads step by step."""

    def __init__(self, sequence: jax.Array) -> None:
        self._sequence = sequence

    def read(self, t: Any) -> jax.Array:
        """Return step ``t``, ``(batch, size)``."""
        return _read(self._sequence, t)


def matmul_over_time(sequence: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply every step of ``sequence`` by ``matrix``, as one product."""
    return (_rows(sequence) @ matrix).reshape(*sequence.shape[:2], matrix.shape[-1])


def fused_matmul(
    a: jax.Array, b: jax.Array, matrix_of_a: jax.Array, matrix_of_b: jax.Array
) -> jax.Array:
    """Return ``a matrix_of_a + b matrix_of_b`` of every step, as one product."""
    both = jnp.concatenate([matrix_of_a, matrix_of_b], axis=0)
    return matmul_over_time(jnp.concatenate([a, b], axis=-1), both)


def matmul_over_time_gradient(
    sequence: jax.Array, matrix: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of ``sequence`` and ``matrix`` from that of ``matmul_over_time``."""
    return matmul_over_time(gradient, matrix.T), matrix_gradient(sequence, gradient)


def matrix_gradient(sequence: jax.Array, gradient: jax.Array) -> jax.Array:
    """Return, as one product, the gradient of a matrix that multiplied every step."""
    return _rows(sequence).T @ _rows(gradient)


def sum_over_time(gradient: jax.Array) -> jax.Array:
    """Sum ``(batch, time, size)`` to ``(size,)``, by products with ones: see ``scan``."""
    ones = jnp.ones((gradient.shape[0], 1, gradient.shape[1]), gradient.dtype)
    return (ones @ gradient).sum(axis=(0, 1))


def previous_states(first: jax.Array, outputs: jax.Array) -> jax.Array:
    """Return the state before each step: ``first``, then all ``outputs`` but the last."""
    return jnp.concatenate([first[:, None], outputs[:, :-1]], axis=1)


def scan(step: Callable[..., Any], states: Arrays, length: int, sizes: Sequence[int]) -> Any:
    """Run ``step(t, *states) -> (states, emitted)`` for t = 0 .. length - 1.

    Returns the last states and all emitted steps.
    """

    def body(t: Any, carried: Any) -> Any:
        states, stores = carried
        states, emitted = step(t, *states)
        return tuple(states), _write_all(stores, emitted, t)

    return lax.fori_loop(0, length, body, (tuple(states), _empty(states[0], length, sizes)))


def scan_in_place(
    step: Callable[..., Any],
    states: Arrays,
    sequences: Arrays,
    sizes: Sequence[int] = (),
    *,
    backwards: bool = False,
) -> Any:
    """Run ``step(t, sequences at t, states) -> (states, overwritten, emitted)`` over time.

    What ``step`` overwrites takes the place of the sequences. Returns the last states, the
    sequences as overwritten, and all emitted steps.
    """
    length = sequences[0].shape[1]
    first, ahead = (length - 1, -1) if backwards else (0, 1)

    def body(k: Any, carried: Any) -> Any:
        states, current, stores, emitted_stores = carried
        t = first + ahead * k
        states, overwritten, emitted = step(t, current, states)
        stores = _write_all(stores, overwritten, t)
        # Read from the store just written. XLA would copy the whole sequence at every step if the
        # next body read it before it writes.
        following = jnp.clip(t + ahead, 0, length - 1)
        current = tuple(_read(store, following) for store in stores)
        return tuple(states), current, stores, _write_all(emitted_stores, emitted, t)

    stores = tuple(sequences)
    current = tuple(_read(store, first) for store in stores)
    start = tuple(states), current, stores, _empty(states[0], length, sizes)
    states, _, stores, emitted = lax.fori_loop(0, length, body, start)
    return states, stores, emitted


def _read(store: jax.Array, t: Any) -> jax.Array:
    return lax.dynamic_index_in_dim(store, t, axis=1, keepdims=False)


def _write_all(stores: Arrays, values: Arrays, t: Any) -> tuple[jax.Array, ...]:
    written = []
    for store, value in zip(stores, values):
        written.append(lax.dynamic_update_index_in_dim(store, value, t, axis=1))
    return tuple(written)


def _empty(state: jax.Array, length: int, sizes: Sequence[int]) -> tuple[jax.Array, ...]:
    """Return zeros ``(batch, length, size)`` of the type of ``state`` for each of ``sizes``."""
    shapes = [(state.shape[0], length, size) for size in sizes]
    return tuple(jnp.zeros_like(state, shape=shape) for shape in shapes)


def _rows(sequence: jax.Array) -> jax.Array:
    return sequence.reshape(-1, sequence.shape[-1])
