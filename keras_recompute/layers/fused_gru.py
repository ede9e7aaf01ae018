"""The GRU recurrence over a whole sequence, with its gradient written by hand.

The plan is that of ``fused_lstm``: products of all steps outside the loops, one recurrent product inside. Replayed
where the outputs are at hand, ``reset_after`` needs no loop at all, because every gate follows from the inputs and the
shifted outputs; without it the same holds, with the candidate's product taken of the reset states.

Gate order is Keras's: update, reset, candidate. Source: Cho et al. 2014 (``reset_after=False``), and the variant whose
reset gate acts after the product, which cuDNN computes.
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


def gru(
    inputs: tf.Tensor, h0: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor, *, reset_after: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the outputs ``(batch, time, units)`` and the last state ``(batch, units)``.

    Shapes: inputs ``(batch, time, features)`` with static time; h0 ``(batch, units)``; kernel ``(features, 3 units)``;
    recurrent_kernel ``(units, 3 units)``; bias ``(2, 3 units)`` with ``reset_after``, else ``(3 units,)``.
    """
    recurrence = _gru_reset_after if reset_after else _gru_reset_before
    outputs, h = by_hand(recurrence, inputs, h0, kernel, recurrent_kernel, bias, count=2, name="gru")
    return outputs, h


def _gru_reset_after(
    inputs: tf.Tensor, h0: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, ...]]]:
    length, units = inputs.shape[1], h0.shape[-1]
    projected = Steps(rows_product(inputs, kernel) + bias[0])

    def gates_from(x: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
        xz, xr, xa = tf.split(x, 3, axis=-1)
        pz, pr, pa = tf.split(product, 3, axis=-1)
        z, r = tf.sigmoid(xz + pz), tf.sigmoid(xr + pr)
        # pa is kept: the gradient of the reset gate needs it.
        return tf.concat([z, r, tf.tanh(xa + r * pa), pa], axis=-1)

    def step(t: tf.Tensor, h: tf.Tensor) -> tuple[States, tuple[tf.Tensor, ...]]:
        gates = gates_from(projected.read(t), tf.matmul(h, recurrent_kernel) + bias[1])
        z, _, a, _ = tf.split(gates, 4, axis=-1)
        h = z * h + (1 - z) * a
        return (h,), (gates, h)

    (h,), (gates, outputs) = forward(step, (h0,), length, (4 * units, units))

    def again() -> tuple[tf.Tensor, ...]:
        product = rows_product(shifted(h0, outputs), recurrent_kernel) + bias[1]
        return (gates_from(rows_product(inputs, kernel) + bias[0], product),)

    (gates,) = cheaper_replay([gates], again, given=[outputs])

    def gradient(d_outputs: tf.Tensor, dh: tf.Tensor) -> tuple[tf.Tensor, ...]:
        before = shifted(h0, outputs)
        before_at, d_outputs_at = Steps(before), Steps(d_outputs)

        def back(t: tf.Tensor, gates: tf.Tensor, dh: tf.Tensor) -> tuple[States, tf.Tensor]:
            z, r, a, pa = tf.split(gates, 4, axis=-1)
            dh = dh + d_outputs_at.read(t)
            dz = dh * (before_at.read(t) - a) * z * (1 - z)
            da = dh * (1 - z) * (1 - a * a)
            dr = da * pa * r * (1 - r)
            d_product = tf.concat([dz, dr, da * r], axis=-1)
            dh = dh * z + tf.matmul(d_product, recurrent_kernel, transpose_b=True)
            return (dh,), tf.concat([d_product, da], axis=-1)

        (dh0,), d_gates = overwrite_backward(back, (dh,), gates)
        d_product = d_gates[:, :, : 3 * units]
        d_x = tf.concat([d_gates[:, :, : 2 * units], d_gates[:, :, 3 * units :]], axis=-1)
        d_inputs, d_kernel = rows_product_gradient(inputs, kernel, d_x)
        d_bias = tf.stack([sum_of_steps(d_x), sum_of_steps(d_product)])
        return d_inputs, dh0, d_kernel, matrix_gradient(before, d_product), d_bias

    return (outputs, h), gradient


def _gru_reset_before(
    inputs: tf.Tensor, h0: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, ...]]]:
    length, units = inputs.shape[1], h0.shape[-1]
    projected = Steps(rows_product(inputs, kernel) + bias)
    of_gates, of_candidate = recurrent_kernel[:, : 2 * units], recurrent_kernel[:, 2 * units :]

    def step(t: tf.Tensor, h: tf.Tensor) -> tuple[States, tuple[tf.Tensor, ...]]:
        x, xa = tf.split(projected.read(t), [2 * units, units], axis=-1)
        z, r = tf.split(tf.sigmoid(x + tf.matmul(h, of_gates)), 2, axis=-1)
        a = tf.tanh(xa + tf.matmul(r * h, of_candidate))
        h = z * h + (1 - z) * a
        return (h,), (tf.concat([z, r, a], axis=-1), h)

    (h,), (gates, outputs) = forward(step, (h0,), length, (3 * units, units))

    def again() -> tuple[tf.Tensor, ...]:
        before = shifted(h0, outputs)
        x, xa = tf.split(rows_product(inputs, kernel) + bias, [2 * units, units], axis=-1)
        z, r = tf.split(tf.sigmoid(x + rows_product(before, of_gates)), 2, axis=-1)
        return (tf.concat([z, r, tf.tanh(xa + rows_product(r * before, of_candidate))], axis=-1),)

    (gates,) = cheaper_replay([gates], again, given=[outputs])

    def gradient(d_outputs: tf.Tensor, dh: tf.Tensor) -> tuple[tf.Tensor, ...]:
        before = shifted(h0, outputs)
        # The loop overwrites the gates, and the reset gate is needed once more after it.
        reset = gates[:, :, units : 2 * units] * before
        before_at, d_outputs_at = Steps(before), Steps(d_outputs)

        def back(t: tf.Tensor, gates: tf.Tensor, dh: tf.Tensor) -> tuple[States, tf.Tensor]:
            z, r, a = tf.split(gates, 3, axis=-1)
            h = before_at.read(t)
            dh = dh + d_outputs_at.read(t)
            da = dh * (1 - z) * (1 - a * a)
            d_reset = tf.matmul(da, of_candidate, transpose_b=True)
            d_gates = tf.concat([dh * (h - a) * z * (1 - z), d_reset * h * r * (1 - r)], axis=-1)
            dh = dh * z + d_reset * r + tf.matmul(d_gates, of_gates, transpose_b=True)
            return (dh,), tf.concat([d_gates, da], axis=-1)

        (dh0,), d_x = overwrite_backward(back, (dh,), gates)
        d_inputs, d_kernel = rows_product_gradient(inputs, kernel, d_x)
        d_of_gates = matrix_gradient(before, d_x[:, :, : 2 * units])
        d_recurrent = tf.concat([d_of_gates, matrix_gradient(reset, d_x[:, :, 2 * units :])], axis=-1)
        return d_inputs, dh0, d_kernel, d_recurrent, sum_of_steps(d_x)

    return (outputs, h), gradient
