"""The LSTM recurrence over a whole sequence, with its gradient written by hand.

Forward: the input projection is one matrix product; the loop holds only the recurrent one. Backward: the loop produces
the gradients of the gate pre-activations; each weight gradient is one product after it (Appleyard, Kocisky and Blunsom
2016, "Optimizing Performance of Recurrent Neural Networks on GPUs", section 3). Differentiating the loop step by step,
as automatic differentiation does, would add a weight gradient per step.

When the gradient is replayed where the outputs are at hand, the recurrence is not run again: all gates are one product
of the inputs and the shifted outputs, and only the cell state is scanned.

Gate order is Keras's: input, forget, candidate, output.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ..engine.marks import cheaper_replay
from .by_hand import by_hand
from .scan import (
    States,
    Steps,
    forward,
    matrix_gradient,
    overwrite_backward,
    rows_product,
    rows_product_gradient,
    shifted,
    sum_of_steps,
)


def lstm(
    inputs: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the outputs ``(batch, time, units)`` and the last states h and c ``(batch, units)``.

    Shapes: inputs ``(batch, time, features)`` with static time; h0, c0 ``(batch, units)``; kernel ``(features, 4 units)``;
    recurrent_kernel ``(units, 4 units)``; bias ``(4 units,)``. Source: Hochreiter and Schmidhuber 1997, with the forget
    gate of Gers et al. 2000.
    """
    outputs, h, c = by_hand(_lstm, inputs, h0, c0, kernel, recurrent_kernel, bias, count=3, name="lstm")
    return outputs, h, c


def _lstm(
    inputs: tf.Tensor, h0: tf.Tensor, c0: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, ...]]]:
    length, units = inputs.shape[1], h0.shape[-1]
    projected = Steps(rows_product(inputs, kernel) + bias)

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> tuple[States, tuple[tf.Tensor, ...]]:
        gates = _activate(projected.read(t) + tf.matmul(h, recurrent_kernel))
        i, f, a, o = tf.split(gates, 4, axis=-1)
        c = f * c + i * a
        h = o * tf.tanh(c)
        return (h, c), (gates, c, h)

    (h, c), (gates, cells, outputs) = forward(step, (h0, c0), length, (4 * units, units, units))

    def again() -> tuple[tf.Tensor, ...]:
        rows = tf.concat([inputs, shifted(h0, outputs)], axis=-1)
        all_gates = _activate(rows_product(rows, tf.concat([kernel, recurrent_kernel], axis=0)) + bias)
        return all_gates, _cells(all_gates, c0)

    gates, cells = cheaper_replay([gates, cells], again, given=[outputs])

    def gradient(d_outputs: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor) -> tuple[tf.Tensor, ...]:
        cells_at, d_outputs_at = Steps(cells), Steps(d_outputs)

        def back(t: tf.Tensor, gates: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor) -> tuple[States, tf.Tensor]:
            i, f, a, o = tf.split(gates, 4, axis=-1)
            before = tf.where(t > 0, cells_at.read(tf.maximum(t - 1, 0)), c0)
            tanh_c = tf.tanh(cells_at.read(t))
            dh = dh + d_outputs_at.read(t)
            dc = dc + dh * o * (1 - tanh_c * tanh_c)
            d = tf.concat(
                [dc * a * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - a * a), dh * tanh_c * o * (1 - o)], axis=-1
            )
            return (tf.matmul(d, recurrent_kernel, transpose_b=True), dc * f), d

        (dh0, dc0), d_gates = overwrite_backward(back, (dh, dc), gates)
        d_inputs, d_kernel = rows_product_gradient(inputs, kernel, d_gates)
        d_recurrent = matrix_gradient(shifted(h0, outputs), d_gates)
        return d_inputs, dh0, dc0, d_kernel, d_recurrent, sum_of_steps(d_gates)

    return (outputs, h, c), gradient


def _activate(z: tf.Tensor) -> tf.Tensor:
    i, f, a, o = tf.split(z, 4, axis=-1)
    return tf.concat([tf.sigmoid(i), tf.sigmoid(f), tf.tanh(a), tf.sigmoid(o)], axis=-1)


def _cells(gates: tf.Tensor, c0: tf.Tensor) -> tf.Tensor:
    """Return the cell states from all gates: the only part that stays sequential, and it has no product."""
    gates_at = Steps(gates)

    def step(t: tf.Tensor, c: tf.Tensor) -> tuple[States, tuple[tf.Tensor, ...]]:
        i, f, a, _ = tf.split(gates_at.read(t), 4, axis=-1)
        c = f * c + i * a
        return (c,), (c,)

    _, (cells,) = forward(step, (c0,), gates.shape[1], (c0.shape[-1],))
    return cells
