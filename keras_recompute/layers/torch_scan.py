"""Scans over time and matrix products over all timesteps on PyTorch: see ``scan`` for them.

They run in Python, step by step, and write into sequences in place. ``torch_vjp`` calls them where
nothing is recorded for a gradient. Sequences are ``(batch, time, size)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]


def runs_on_cudnn(layer: Any) -> bool:
    """Whether Keras runs an LSTM or GRU on cuDNN: where there is a GPU.

    cuDNN's GRU applies the reset gate behind the product with the state.
    """
    return torch.cuda.is_available() and getattr(layer, "reset_after", True)


def delay_until(tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``: operations run in the order of the program."""
    return tensor


class Steps:
    """A sequence that a loop reads step by step."""

    def __init__(self, sequence: torch.Tensor) -> None:
        # Views made at once cost less than an index in each step.
        self._steps = sequence.unbind(1)

    def read(self, t: Any) -> torch.Tensor:
        """Return step ``t``, ``(batch, size)``."""
        return self._steps[int(t)]


def matmul_over_time(sequence: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply every step of ``sequence`` by ``matrix``, as one product."""
    return sequence @ matrix


def fused_matmul(
    a: torch.Tensor, b: torch.Tensor, matrix_of_a: torch.Tensor, matrix_of_b: torch.Tensor
) -> torch.Tensor:
    """Return ``a matrix_of_a + b matrix_of_b`` of every step."""
    return a @ matrix_of_a + b @ matrix_of_b


def matmul_over_time_gradient(
    sequence: torch.Tensor, matrix: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of ``sequence`` and ``matrix`` from that of ``matmul_over_time``."""
    return gradient @ matrix.T, matrix_gradient(sequence, gradient)


def matrix_gradient(sequence: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return, as one product, the gradient of a matrix that multiplied every step."""
    return sequence.flatten(0, 1).T @ gradient.flatten(0, 1)


def sum_over_time(gradient: torch.Tensor) -> torch.Tensor:
    """Sum ``(batch, time, size)`` to ``(size,)``."""
    return gradient.sum((0, 1))


def previous_states(first: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return the state before each step: ``first``, then all ``outputs`` but the last."""
    return torch.cat([first[:, None], outputs[:, :-1]], dim=1)


def scan(step: Callable[..., Any], states: Tensors, length: int, sizes: Sequence[int]) -> Any:
    """Run ``step(t, *states) -> (states, emitted)`` for t = 0 .. length - 1.

    Returns the last states and all emitted steps.
    """
    stores = _empty(states[0], length, sizes)
    for t in range(length):
        states, emitted = step(t, *states)
        _write_all(stores, emitted, t)
    return states, stores


def scan_in_place(
    step: Callable[..., Any],
    states: Tensors,
    sequences: Tensors,
    sizes: Sequence[int] = (),
    *,
    backwards: bool = False,
) -> Any:
    """Run ``step(t, sequences at t, states) -> (states, overwritten, emitted)`` over time.

    What ``step`` overwrites takes the place of the sequences. Returns the last states, the
    sequences as overwritten, and all emitted steps.
    """
    length = sequences[0].shape[1]
    emitted_stores = _empty(states[0], length, sizes)
    times = range(length)
    for t in reversed(times) if backwards else times:
        # Views, which `step` reads before they are written over.
        current = tuple(sequence[:, t] for sequence in sequences)
        states, overwritten, emitted = step(t, current, states)
        _write_all(sequences, overwritten, t)
        _write_all(emitted_stores, emitted, t)
    return states, tuple(sequences), emitted_stores


def _write_all(stores: Tensors, values: Tensors, t: int) -> None:
    for store, value in zip(stores, values):
        store[:, t] = value


def _empty(state: torch.Tensor, length: int, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return a store ``(batch, length, size)`` of the type of ``state`` for each of ``sizes``."""
    return tuple(state.new_empty((state.shape[0], length, size)) for size in sizes)
