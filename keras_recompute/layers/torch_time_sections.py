"""The time loop of Keras's recurrent layers in sections, on PyTorch: see ``time_sections``.

A section is a loop in Python over some of the steps, recomputed as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import torch

from ..seams.keras.layers import layers_in
from ..seams.keras.time_loops import dropout_masks_now
from .stateless_functions import run_recomputed
from .time_loops import LoopOptions, cut_time_loops, sqrt_sections

Tensors = Sequence[torch.Tensor]


def section_recurrent_layers() -> AbstractContextManager[None]:
    """Make Keras's recurrent layers keep one state per section of time."""
    return cut_time_loops(_cut, where=torch.is_grad_enabled)


def _cut(
    plain: Callable[..., Any],
    layer: keras.layers.RNN,
    step_function: Callable[..., Any] | None,
    inputs: torch.Tensor,
    initial_states: Any,
    options: LoopOptions,
) -> Any:
    return _Recurrence(plain, layer, step_function, options).run(inputs, initial_states)


class _Recurrence:
    """One call of a recurrent layer."""

    def __init__(
        self,
        plain: Callable[..., Any],
        layer: keras.layers.RNN,
        step_function: Callable[..., Any] | None,
        options: LoopOptions,
    ) -> None:
        self._plain, self._layer = plain, layer
        self._step_function, self._options = step_function, options
        self._layers = layers_in(layer)
        self._dropout_masks = dropout_masks_now(layer)

    def run(self, inputs: torch.Tensor, initial_states: Any) -> tuple[Any, Any, Any]:
        """Return last output, all outputs and last states, as Keras does."""
        sequences = [inputs]
        if self._options.mask is not None:
            mask = self._options.mask.bool()
            sequences.append(mask[..., None] if mask.ndim == 2 else mask)
        if self._options.go_backwards:
            sequences = [torch.flip(each, [1]) for each in sequences]
        self._structure = tuple(initial_states)
        carried = list(map(keras.ops.convert_to_tensor, keras.tree.flatten(initial_states)))
        if self._layer.stateful:
            # Keras assigns the new states in place, before the backward pass reads these.
            carried = [state.clone() for state in carried]
        self._count = len(carried)
        if self._step_function is not None and not self._options.unroll:
            # Keras too runs a step before its loop; a cell that draws random numbers then draws
            # the same.
            with torch.no_grad():
                self._call(inputs[:, 0], carried)
        lengths = []
        for count, length in sqrt_sections(inputs.shape[1]):
            lengths += [length] * count
        joined = []
        for parts in zip(*(torch.split(each, lengths, dim=1) for each in sequences)):
            given = [*carried, *parts]
            results = run_recomputed(self._section, given, self._layers, name=self._layer.name)
            assert results is not None  # the layers have their variables
            *carried, outputs = results
            joined.append(outputs)
        whole = torch.cat(joined, dim=1)
        states = keras.tree.pack_sequence_as(self._structure, carried[: self._count])
        return whole[:, -1], whole, states

    def _section(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the states behind a section, its last output if masked steps repeat it, and all.

        It is given the states, the last output of the section before it if there is one, and its
        parts of the sequences, ``(batch, steps, ...)``.
        """
        states: Tensors = tensors[: self._count]
        if self._step_function is None:
            every = self._options.return_all_outputs
            _, outputs, new = self._plain(None, tensors[-1], states, return_all_outputs=every)
            return [*new, outputs]
        sequences = 1 + (self._options.mask is not None)
        before: Tensors = tensors[self._count : -sequences]
        joined = []
        # In a replay the layer has dropped them.
        with self._dropout_masks():
            for x, *masks in zip(*(part.unbind(1) for part in tensors[-sequences:])):
                output, new_states = self._call(x, states)
                if masks:
                    output, new_states = self._masked(masks[0], output, before, new_states, states)
                    before = () if self._options.zero_output_for_mask else (output,)
                states = new_states
                joined.append(output)
        outputs = torch.stack(joined if self._options.return_all_outputs else joined[-1:], dim=1)
        return [*states, *before, outputs]

    def _masked(
        self,
        mask: torch.Tensor,
        output: torch.Tensor,
        before: Tensors,
        new_states: Tensors,
        states: Tensors,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the output and the states of a step where those of ``mask`` alone are new."""
        instead = before[0] if before else torch.zeros_like(output)
        choose = functools.partial(_where, mask)
        return choose(output, instead), list(map(choose, new_states, states))

    def _call(self, x: torch.Tensor, states: Tensors) -> tuple[torch.Tensor, list[torch.Tensor]]:
        packed = keras.tree.pack_sequence_as(self._structure, list(states))
        assert self._step_function is not None
        output, after = self._step_function(x, (*packed, *(self._options.constants or ())))
        return output, keras.tree.flatten(after)


def _where(mask: torch.Tensor, chosen: torch.Tensor, instead: torch.Tensor) -> torch.Tensor:
    """Return ``chosen`` where ``mask``, ``(batch, 1)``, is True, else ``instead``."""
    return torch.where(mask.reshape(*mask.shape, *[1] * (chosen.ndim - mask.ndim)), chosen, instead)
