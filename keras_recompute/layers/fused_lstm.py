"""The LSTM recurrence over a whole sequence, with a hand-written gradient.

Forward: the input projection is one matrix product; the loop holds only the recurrent one.
Backward: the loop computes the gradients of the gate pre-activations; each weight gradient is one
product after it. Automatic differentiation would add a weight gradient per step.

The gates are as large as the projected inputs and as their own gradients, and each is written over
the one before. If no gradient needs the gates, the forward pass does not store them. Where the
outputs are available, the replay does not run the recurrence: all gates follow from one product of
the inputs and the previous outputs, and only the cell state is scanned.

Gate order is Keras's: input, forget, candidate, output.

Source: Appleyard, Kocisky and Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on
GPUs", section 3.
"""

from __future__ import annotations

from collections.abc import Callable

from keras import ops

from .backend_scan import (
    RUNS_EACH_OPERATION,
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


def lstm(
    inputs: Tensor,
    h0: Tensor,
    c0: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs ``(batch, time, units)`` and last states h, c ``(batch, units)`` of an LSTM.

    Shapes: inputs ``(batch, time, features)`` with static time; h0, c0 ``(batch, units)``; kernel
    ``(features, 4 units)``; recurrent_kernel ``(units, 4 units)``; bias ``(4 units,)``. Source:
    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    outputs, h, c = call_with_vjp(
        _lstm, inputs, h0, c0, kernel, recurrent_kernel, bias, count=3, name="lstm"
    )
    return outputs, h, c


def _lstm(
    inputs: Tensor,
    h0: Tensor,
    c0: Tensor,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    bias: Tensor,
) -> tuple[Tensors, Callable[..., Tensors]]:
    length, units = inputs.shape[1], h0.shape[-1]
    projected = matmul_over_time(inputs, kernel)

    def advance(x: Tensor, h: Tensor, c: Tensor) -> Tensors:
        # The bias is added here, fused with the gates; before the loop it takes a pass over memory.
        gates, c = _gates_and_cell(x + h @ recurrent_kernel + bias, c)
        return gates, gates[:, 3 * units :] * ops.tanh(c), c

    def keeping(_: Tensor, current: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
        gates, h, c = advance(*current, *states)
        return (h, c), (gates,), (c, h)

    def alone() -> Tensors:
        projected_at = Steps(projected)

        def step(t: Tensor, h: Tensor, c: Tensor) -> tuple[States, Tensors]:
            _, h, c = advance(projected_at.read(t), h, c)
            return (h, c), (h,)

        states, (outputs,) = scan(step, (h0, c0), length, [units])
        return outputs, *states

    if is_inference():
        return alone(), no_gradient
    (h, c), (gates,), (cells, outputs) = scan_in_place(
        keeping, (h0, c0), [projected], [units, units]
    )
    outputs, h, c = inference_alternative([outputs, h, c], alone)

    def recompute() -> Tensors:
        summed = fused_matmul(inputs, previous_states(h0, outputs), kernel, recurrent_kernel)

        def step(_: Tensor, current: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
            gates, c = _gates_and_cell(current[0] + bias, *states)
            return (c,), (gates,), (c,)

        _, (gates,), (cells,) = scan_in_place(step, (c0,), [summed], [units])
        return gates, cells

    gates, cells = replay_alternative([gates, cells], recompute, given=[outputs])

    def gradient(d_outputs: Tensor, dh: Tensor, dc: Tensor) -> Tensors:
        cells_at, d_outputs_at = Steps(cells), Steps(d_outputs)
        # Transposed once: transposing at every step would take longer than the product itself.
        turned = ops.transpose(recurrent_kernel)

        def back(t: Tensor, current: Tensors, states: States) -> tuple[States, Tensors, Tensors]:
            (gates,), (dh, dc) = current, states
            i, f, a, o = ops.split(gates, 4, axis=-1)
            before = ops.where(t > 0, cells_at.read(ops.maximum(t - 1, 0)), c0)
            tanh_c = ops.tanh(cells_at.read(t))
            dh = dh + d_outputs_at.read(t)
            dc = dc + dh * o * (1 - tanh_c * tanh_c)
            d = ops.concatenate([dc * a, dc * before, dc * i, dh * tanh_c], axis=-1) * _slopes(
                gates
            )
            return (d @ turned, dc * f), (d,), ()

        (dh0, dc0), (d_gates,), _ = scan_in_place(back, (dh, dc), [gates], backwards=True)
        # Compilers that start work early would hold both while the loop runs: a slice of a longer
        # sequence, and the previous states.
        inputs_late = delay_until(inputs, d_gates)
        d_inputs, d_kernel = matmul_over_time_gradient(inputs_late, kernel, d_gates)
        before = previous_states(h0, delay_until(outputs, d_kernel))
        d_recurrent = matrix_gradient(before, d_gates)
        return d_inputs, dh0, dc0, d_kernel, d_recurrent, sum_over_time(d_gates)

    return (outputs, h, c), gradient


def _gates_and_cell(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gates of one step from their pre-activations, and the next cell state."""
    gates = _activate(z)
    i, f, a, _ = ops.split(gates, 4, axis=-1)
    return gates, f * c + i * a


def _activate(z: Tensor) -> Tensor:
    """Return the gates: sigmoid of all columns but the candidate's, which take tanh.

    With sigmoid(z) = (1 + tanh(z / 2)) / 2 it is one function of all columns, which compilers
    vectorise. Concatenated parts would need a decision per element.
    """
    units = z.shape[-1] // 4
    if RUNS_EACH_OPERATION:
        parts = z[..., : 2 * units], z[..., 2 * units : 3 * units], z[..., 3 * units :]
        made = [f(part) for f, part in zip((ops.sigmoid, ops.tanh, ops.sigmoid), parts)]
        return ops.concatenate(made, axis=-1)
    scale = ops.convert_to_tensor([0.5] * (2 * units) + [1.0] * units + [0.5] * units, z.dtype)
    return scale * ops.tanh(scale * z) + (1 - scale)


def _slopes(gates: Tensor) -> Tensor:
    """Return the derivatives of the activations: g (1 - g), for the candidate (1 + a)(1 - a)."""
    units = gates.shape[-1] // 4
    if RUNS_EACH_OPERATION:
        a = 1 + gates[..., 2 * units : 3 * units]
        parts = gates[..., : 2 * units], a, gates[..., 3 * units :]
        return ops.concatenate(parts, axis=-1) * (1 - gates)
    is_candidate = ops.convert_to_tensor(
        [0.0] * (2 * units) + [1.0] * units + [0.0] * units, gates.dtype
    )
    return (gates + is_candidate) * (1 - gates)
