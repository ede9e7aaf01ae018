"""The time loop of Keras's recurrent layers in sections, on JAX: see ``time_sections``.

A section is Keras's own loop over some of the steps, recomputed as a whole. Sections of one length
are a ``jax.lax.scan``, so that the program does not grow with time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from ..keras_backend import jax_remat
from ..op_names import backward_scope, forward_scope, section_name
from .time_loops import LoopOptions, cut_time_loops, sqrt_sections, warn_uncut


def section_recurrent_layers() -> AbstractContextManager[None]:
    """Make Keras's recurrent layers keep one state per section of time."""
    return cut_time_loops(_cut)


def _cut(
    plain: Callable[..., Any],
    layer: keras.layers.RNN,
    step_function: Callable[..., Any] | None,
    inputs: jax.Array,
    initial_states: Any,
    options: LoopOptions,
) -> Any:
    if options.unroll and options.mask is not None:
        # The first masked step of a section would repeat zeros.
        warn_uncut(layer, "unroll=True with a mask. Leave unroll out")
        return None
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
        self._plain, self._step_function, self._options = plain, step_function, options
        self._name = section_name(layer.name)

    def run(self, inputs: jax.Array, initial_states: Any) -> tuple[jax.Array, jax.Array, Any]:
        """Return last output, all outputs and last states, as Keras does."""
        sequences = [inputs]
        if self._options.mask is not None:
            sequences.append(self._options.mask.astype("bool"))
        if self._options.go_backwards:
            sequences = [jnp.flip(each, axis=1) for each in sequences]
        states, structure = jax.tree.flatten(initial_states)
        states = list(map(jnp.asarray, states))  # a stateful layer passes variables

        def section(*arrays: jax.Array) -> list[jax.Array]:
            """Return the states behind a section, and its outputs, ``(batch, steps, units)``."""
            before = structure.unflatten(arrays[: len(states)])
            x, *masks = arrays[len(states) :]
            last, outputs, after = self._plain(
                self._step_function,
                x,
                before,
                mask=masks[0] if masks else None,
                constants=self._options.constants,
                unroll=self._options.unroll,
                zero_output_for_mask=self._options.zero_output_for_mask,
                return_all_outputs=self._options.return_all_outputs,
            )
            returned = outputs if self._options.return_all_outputs else last[:, None]
            return [*jax.tree.leaves(after), returned]

        recomputed = jax_remat.recomputed(section, name=backward_scope(self._name))

        def body(carry: list[jax.Array], slices: list[jax.Array]) -> Any:
            *after, outputs = recomputed(*carry, *slices)
            return after, outputs

        joined, begin = [], 0
        for count, length in sqrt_sections(inputs.shape[1]):
            end = begin + count * length
            parts = [_in_sections(each[:, begin:end], count) for each in sequences]
            with jax_remat.named_scope(forward_scope(self._name)):
                states, outputs = jax.lax.scan(body, states, parts)
            joined.append(_joined(outputs))
            begin = end
        whole = jnp.concatenate(joined, axis=1) if len(joined) > 1 else joined[0]
        return whole[:, -1], whole, structure.unflatten(states)


def _in_sections(sequence: jax.Array, count: int) -> jax.Array:
    """Return ``(batch, time, ...)`` as ``(count, batch, time / count, ...)``."""
    batch, steps, *rest = sequence.shape
    return jnp.moveaxis(sequence.reshape(batch, count, steps // count, *rest), 1, 0)


def _joined(sections: jax.Array) -> jax.Array:
    """Return ``(count, batch, time, ...)`` as ``(batch, count * time, ...)``."""
    count, batch, steps, *rest = sections.shape
    return jnp.moveaxis(sections, 0, 1).reshape(batch, count * steps, *rest)
