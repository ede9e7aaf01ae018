"""Scans over time and matrix products over all timesteps, shared by the recurrent layers.

Sequences are ``(batch, time, size)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..engine import target_now
from ..engine.graph import delay, with_body_passes
from ..engine.scan import Dimension, SliceStore, dimensions, empty_all, put_all, whole_all

States = tuple[tf.Tensor, ...]
Tensors = tuple[tf.Tensor, ...]
Step = Callable[..., tuple[States, Tensors]]
OverwritingStep = Callable[[tf.Tensor, Tensors, States], tuple[States, Tensors, Tensors]]


class Steps:
    """A sequence that a loop reads step by step, and may overwrite at the steps already read."""

    def __init__(self, sequence: tf.Tensor) -> None:
        self.slices = _steps(
            sequence.shape[1], dimensions(sequence)[0], sequence.shape[2], sequence.dtype
        )
        self.store = self.slices.full(sequence, target_now())

    def read(self, t: tf.Tensor) -> tf.Tensor:
        """Return step ``t``, ``(batch, size)``."""
        return tf.squeeze(self.slices.get(self.store, t), axis=1)


def matmul_over_time(sequence: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Multiply every step of ``sequence`` by ``matrix``, as one product."""
    product = tf.matmul(_rows(sequence), matrix)
    return tf.reshape(product, [-1, sequence.shape[1], matrix.shape[-1]])


def fused_matmul(
    a: tf.Tensor, b: tf.Tensor, matrix_of_a: tf.Tensor, matrix_of_b: tf.Tensor
) -> tf.Tensor:
    """Return ``a matrix_of_a + b matrix_of_b`` of every step, as one product."""
    return matmul_over_time(
        tf.concat([a, b], axis=-1), tf.concat([matrix_of_a, matrix_of_b], axis=0)
    )


def matmul_over_time_gradient(
    sequence: tf.Tensor, matrix: tf.Tensor, gradient: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the gradients of ``sequence`` and ``matrix`` from that of ``matmul_over_time``."""
    d_rows = tf.matmul(_rows(gradient), matrix, transpose_b=True)
    d_sequence = tf.reshape(d_rows, [-1, sequence.shape[1], matrix.shape[0]])
    return d_sequence, matrix_gradient(sequence, gradient)


def matrix_gradient(sequence: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Return, as one product, the gradient of a matrix that multiplied every step."""
    return tf.matmul(_rows(sequence), _rows(gradient), transpose_a=True)


def sum_over_time(gradient: tf.Tensor) -> tf.Tensor:
    """Sum ``(batch, time, size)`` to ``(size,)``, which is the gradient of a bias."""
    # As a product with ones, sequence by sequence. Compilers add rows one after the other, which
    # loses a digit over tens of thousands of steps (relative error 4e-6, here 7e-7, over 16 x 2048
    # steps of one sign).
    ones = tf.ones([dimensions(gradient)[0], 1, gradient.shape[1]], gradient.dtype)
    return tf.reduce_sum(tf.matmul(ones, gradient), axis=[0, 1])


def delay_until(tensor: tf.Tensor, made: tf.Tensor) -> tf.Tensor:
    """Return ``tensor``; what follows from it is computed no earlier than ``made``."""
    (late,) = delay([tensor], target_now(), after=[made])
    return late


def runs_on_cudnn(_: Any) -> bool:
    """Whether Keras runs an LSTM or GRU on cuDNN under jit: not on TensorFlow."""
    return False


def is_inference() -> bool:
    """Whether no gradient will be asked for: never known here, where the partition finds out."""
    return False


def previous_states(first: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return the state before each step: ``first``, then all ``outputs`` but the last."""
    return tf.concat([first[:, None], outputs[:, :-1]], axis=1)


def scan(step: Step, states: States, length: int, sizes: Sequence[int]) -> tuple[States, Tensors]:
    """Run ``step(t, *states) -> (states, emitted)`` for t = 0 .. length - 1.

    Returns the last states and all emitted steps.
    """
    batch, dtype = dimensions(states[0])[0], states[0].dtype
    emitted_slices = _stores_of(sizes, length, batch, dtype)

    def body(t: tf.Tensor, states: States, stores: Any) -> tuple[Any, ...]:
        states, emitted = step(t, *states)
        stores = put_all(emitted_slices, stores, t, _with_time(emitted))
        return t + 1, tuple(states), tuple(stores)

    begin = tf.constant(0)
    start = begin, tuple(states), tuple(empty_all(emitted_slices, target_now()))
    _, states, stores = run_loop(length, body, start)
    return states, tuple(whole_all(emitted_slices, stores))


def scan_in_place(
    step: OverwritingStep,
    states: States,
    sequences: Sequence[tf.Tensor],
    sizes: Sequence[int] = (),
    *,
    backwards: bool = False,
) -> tuple[States, Tensors, Tensors]:
    """Run ``step(t, sequences at t, states) -> (states, overwritten, emitted)`` over time.

    What ``step`` overwrites takes the place of the sequences. Returns the last states, the
    sequences as overwritten, and all emitted steps. It saves memory because gates are as large as
    the projected inputs that they are made from, and their gradients as large as the gates, and no
    step is read twice.
    """
    batch, dtype, length = dimensions(states[0])[0], states[0].dtype, sequences[0].shape[1]
    steps = list(map(Steps, sequences))
    emitted_slices = _stores_of(sizes, length, batch, dtype)
    first, ahead = (length - 1, -1) if backwards else (0, 1)
    sequence_slices, current, stores = [], [], []
    for each in steps:
        sequence_slices.append(each.slices)
        current.append(each.read(first))
        stores.append(each.store)

    def body(
        k: tf.Tensor, states: States, current: Tensors, stores: Any, emitted_stores: Any
    ) -> tuple[Any, ...]:
        t = first + ahead * k
        states, overwritten, emitted = step(t, current, states)
        stores = tuple(put_all(sequence_slices, stores, t, _with_time(overwritten)))
        # Read from the store just written: the compiler then sees that the old contents are dead,
        # and updates in place instead of copying the whole sequence at every step.
        following = tf.clip_by_value(t + ahead, 0, length - 1)
        current = tuple(
            tf.squeeze(slices.get(store, following), axis=1)
            for slices, store in zip(sequence_slices, stores)
        )
        emitted_stores = tuple(put_all(emitted_slices, emitted_stores, t, _with_time(emitted)))
        return k + 1, tuple(states), current, stores, emitted_stores

    empty = empty_all(emitted_slices, target_now())
    # Zeros depend on nothing: XLA would make these arrays at the start of the program.
    emitted_stores = tuple(delay(empty, target_now(), after=[sequences[0]]))
    start = tf.constant(0), tuple(states), tuple(current), tuple(stores), emitted_stores
    _, states, _, stores, emitted_stores = run_loop(length, body, start)
    overwritten = tuple(whole_all(sequence_slices, stores))
    return states, overwritten, tuple(whole_all(emitted_slices, emitted_stores))


def _with_time(tensors: Iterable[tf.Tensor]) -> Iterator[tf.Tensor]:
    """Yield ``tensors`` of one step, ``(batch, size)``, as ``(batch, 1, size)``."""
    return (tensor[:, None] for tensor in tensors)


def run_loop(length: int, body: Callable[..., Any], start: Any) -> Any:
    """Run ``body`` ``length`` times; the first element of ``start`` is its counter."""
    body = with_body_passes(body, target_now())
    return tf.while_loop(
        lambda k, *_: k < length, body, start, maximum_iterations=length, parallel_iterations=1
    )


def _steps(length: int, batch: Dimension, size: int, dtype: tf.DType) -> SliceStore:
    return SliceStore(length, (batch, 1, size), dtype, axis=1)


def _stores_of(
    sizes: Sequence[int], length: int, batch: Dimension, dtype: tf.DType
) -> list[SliceStore]:
    """Return a store of ``length`` steps for each of ``sizes``."""
    return [_steps(length, batch, size, dtype) for size in sizes]


def _rows(sequence: tf.Tensor) -> tf.Tensor:
    return tf.reshape(sequence, [-1, sequence.shape[-1]])
