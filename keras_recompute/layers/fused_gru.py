"""The GRU recurrence over a whole sequence, with a hand-written gradient.

As in ``fused_lstm``, products of all steps are outside of the loops, and one recurrent product
inside. The two gates and the candidate are separate arrays, so that nothing is concatenated or
split per step. Where the outputs are available, the replay with ``reset_after`` needs no loop:
every gate follows from the inputs and the previous outputs. Without it the same holds, with the
candidate's product taken of the reset states.

Gate order is Keras's: update, reset, candidate.

Sources: Cho et al. 2014 (``reset_after=False``), and cuDNN's variant whose reset gate acts after
the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from keras import ops

from .backend_scan import (
    States,
    Steps,
    Tensor,
    Tensors,
    call_with_vjp,
    delay_until,
    fused_matmul,
    inference_alternative,
    is_inference,
    matmul_over_time,
    matmul_over_time_gradient,
    matrix_gradient,
    no_gradient,
    previous_states,
    replay_alternative,
    scan,
    scan_in_place,
    sum_over_time,
)


def gru(
    inputs: Tensor,
    h0: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor,
    *,
    reset_after: bool,
) -> tuple[Tensor, Tensor]:
    """Return the outputs ``(batch, time, units)`` and the last state ``(batch, units)`` of a GRU.

    Shapes: inputs ``(batch, time, features)`` with static time; h0 ``(batch, units)``; kernel
    ``(features, 3 units)``; recurrent_kernel ``(units, 3 units)``; bias ``(2, 3 units)`` with
    ``reset_after``, else ``(3 units,)``.
    """
    recurrence = _gru_reset_after if reset_after else _gru_reset_before
    outputs, h = call_with_vjp(
        recurrence, inputs, h0, kernel, recurrent_kernel, bias, count=2, name="gru"
    )
    return outputs, h


def _gru_reset_after(
    inputs: Tensor,
    h0: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor,
) -> tuple[Tensors, Callable[..., Tensors]]:
    units = h0.shape[-1]
    kernels, recurrent = _columns(kernel, units), _columns(recurrent_kernel, units)
    bias_zr, bias_a = _columns(bias[0], units)
    recurrent_bias_zr, recurrent_bias_a = _columns(bias[1], units)
    projected = [matmul_over_time(inputs, k) for k in kernels]

    def gates_from(sum_zr: Tensor, x_a: Tensor, p_a: Tensor) -> Tensors:
        # Biases are added here, fused with the gates; before the loop it takes a pass over memory.
        zr = ops.sigmoid(sum_zr + (bias_zr + recurrent_bias_zr))
        # The candidate's product is kept: the gradient of the reset gate needs it.
        return zr, ops.tanh(x_a + bias_a + zr[..., units:] * (p_a + recurrent_bias_a)), p_a

    def advance(x: Tensors, h: Tensor) -> Tensors:
        x_zr, x_a = x
        p_zr, p_a = _columns(h @ recurrent_kernel, units)
        zr, a, p_a = gates_from(x_zr + p_zr, x_a, p_a)
        z = zr[:, :units]
        return zr, a, p_a, z * h + (1 - z) * a

    def keeping(_: Tensor, x: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
        zr, a, p_a, h = advance(x, *states)
        return (h,), (zr, a), (p_a, h)

    def alone() -> Tensors:
        return _outputs_alone(lambda x, h: advance(x, h)[-1], projected, h0)

    if is_inference():
        return alone(), no_gradient
    (h,), (zr, a), (p_a, outputs) = scan_in_place(keeping, (h0,), projected, [units, units])
    outputs, h = inference_alternative([outputs, h], alone)

    def recompute() -> Tensors:
        before = previous_states(h0, outputs)
        sum_zr = fused_matmul(inputs, before, kernels[0], recurrent[0])
        # Otherwise a slice of a longer sequence is made for both products at once.
        x_a = matmul_over_time(delay_until(inputs, sum_zr), kernels[1])
        return gates_from(sum_zr, x_a, matmul_over_time(before, recurrent[1]))

    zr, a, p_a = replay_alternative([zr, a, p_a], recompute, given=[outputs])

    def gradient(d_outputs: Tensor, dh: Tensor) -> Tensors:
        before = previous_states(h0, outputs)
        before_at, d_outputs_at = Steps(before), Steps(d_outputs)
        turned = ops.transpose(recurrent_kernel)  # once; see fused_lstm

        def back(t: Tensor, current: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
            (zr, a, p_a), (dh,) = current, states
            z, r = ops.split(zr, 2, axis=-1)
            dh = dh + d_outputs_at.read(t)
            da = dh * (1 - z) * (1 - a * a)
            d_zr = ops.concatenate(
                [dh * (before_at.read(t) - a), da * (p_a + recurrent_bias_a)], axis=-1
            ) * (zr * (1 - zr))
            d_p_a = da * r
            dh = dh * z + ops.concatenate([d_zr, d_p_a], axis=-1) @ turned
            return (dh,), (d_zr, da, d_p_a), ()

        (dh0,), (d_zr, da, d_p_a), _ = scan_in_place(back, (dh,), [zr, a, p_a], backwards=True)
        d_inputs, d_kernel = _product_gradients(inputs, kernels, (d_zr, da))
        before = previous_states(h0, delay_until(outputs, d_kernel))  # as in fused_lstm
        of_gates, of_candidate = matrix_gradient(before, d_zr), matrix_gradient(before, d_p_a)
        d_recurrent = ops.concatenate([of_gates, of_candidate], axis=-1)
        of_zr, of_a, of_p_a = sum_over_time(d_zr), sum_over_time(da), sum_over_time(d_p_a)
        inputs_bias, recurrent_bias = (
            ops.concatenate([of_zr, each], axis=0) for each in (of_a, of_p_a)
        )
        d_bias = ops.stack([inputs_bias, recurrent_bias])
        return d_inputs, dh0, d_kernel, d_recurrent, d_bias

    return (outputs, h), gradient


def _gru_reset_before(
    inputs: Tensor,
    h0: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor,
) -> tuple[Tensors, Callable[..., Tensors]]:
    units = h0.shape[-1]
    kernels, biases = _columns(kernel, units), _columns(bias, units)
    of_gates, of_candidate = _columns(recurrent_kernel, units)
    projected = [matmul_over_time(inputs, k) for k in kernels]

    def advance(x: Tensors, h: Tensor) -> Tensors:
        zr = ops.sigmoid(x[0] + h @ of_gates + biases[0])
        z, r = ops.split(zr, 2, axis=-1)
        a = ops.tanh(x[1] + (r * h) @ of_candidate + biases[1])
        return zr, a, z * h + (1 - z) * a

    def keeping(_: Tensor, x: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
        zr, a, h = advance(x, *states)
        return (h,), (zr, a), (h,)

    def alone() -> Tensors:
        return _outputs_alone(lambda x, h: advance(x, h)[-1], projected, h0)

    if is_inference():
        return alone(), no_gradient
    (h,), (zr, a), (outputs,) = scan_in_place(keeping, (h0,), projected, [units])
    outputs, h = inference_alternative([outputs, h], alone)

    def recompute() -> Tensors:
        before = previous_states(h0, outputs)
        zr = ops.sigmoid(fused_matmul(inputs, before, kernels[0], of_gates) + biases[0])
        return zr, ops.tanh(
            fused_matmul(inputs, zr[..., units:] * before, kernels[1], of_candidate) + biases[1]
        )

    zr, a = replay_alternative([zr, a], recompute, given=[outputs])

    def gradient(d_outputs: Tensor, dh: Tensor) -> Tensors:
        before = previous_states(h0, outputs)
        # Computed before the loop, which overwrites the gates.
        reset = zr[:, :, units:] * before
        before_at, d_outputs_at = Steps(before), Steps(d_outputs)
        # Transposed once, as in fused_lstm.
        gates_turned, candidate_turned = ops.transpose(of_gates), ops.transpose(of_candidate)

        def back(t: Tensor, current: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
            (zr, a), (dh,) = current, states
            z, r = ops.split(zr, 2, axis=-1)
            h = before_at.read(t)
            dh = dh + d_outputs_at.read(t)
            da = dh * (1 - z) * (1 - a * a)
            d_reset = da @ candidate_turned
            d_zr = ops.concatenate([dh * (h - a), d_reset * h], axis=-1) * (zr * (1 - zr))
            return (dh * z + d_reset * r + d_zr @ gates_turned,), (d_zr, da), ()

        (dh0,), (d_zr, da), _ = scan_in_place(back, (dh,), [zr, a], backwards=True)
        d_inputs, d_kernel = _product_gradients(inputs, kernels, (d_zr, da))
        before = previous_states(h0, delay_until(outputs, d_kernel))
        d_recurrent = ops.concatenate(
            [matrix_gradient(before, d_zr), matrix_gradient(reset, da)], axis=-1
        )
        return (
            d_inputs,
            dh0,
            d_kernel,
            d_recurrent,
            ops.concatenate([sum_over_time(d_zr), sum_over_time(da)], axis=0),
        )

    return (outputs, h), gradient


def _columns(tensor: Tensor, units: int) -> Tensors:
    """Return the columns of the two gates, and those of the candidate."""
    return tensor[..., : 2 * units], tensor[..., 2 * units :]


def _outputs_alone(
    advance: Callable[[Tensors, Tensor], Tensor],
    projected: Sequence[Tensor],
    h0: Tensor,
) -> Tensors:
    """Return the outputs and the last state by a loop that stores no gates."""
    projected_at = list(map(Steps, projected))

    def step(t: Tensor, h: Tensor) -> tuple[States, Tensors]:
        h = advance(tuple(p.read(t) for p in projected_at), h)
        return (h,), (h,)

    (h,), (outputs,) = scan(step, (h0,), projected[0].shape[1], [h0.shape[-1]])
    return outputs, h


def _product_gradients(
    inputs: Tensor, kernels: Tensors, gradients: Tensors
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the inputs and of the whole kernel from those of its products."""
    # One loop made both gradients, so both products read one slice of a longer sequence.
    of_product = partial(matmul_over_time_gradient, delay_until(inputs, gradients[0]))
    (d_inputs, d_kernel), (more_d_inputs, d_candidate) = map(of_product, kernels, gradients)
    return d_inputs + more_d_inputs, ops.concatenate([d_kernel, d_candidate], axis=-1)
