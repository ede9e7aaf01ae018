"""An estimate, from the traced sections of a step, of the memory that checkpoints save.

It counts what waits for the backward pass: weights, the optimizer's state, gradients, and the
activations that sections keep. A step holds most when one of its sections runs backward: the
activations of this one, two of their gradients, what those before it keep, and gradients of
weights: those of this section and, where updates wait for all of them, of those behind it. Nothing
is compiled for that, so the workspace of operations does not count, nor what a compiler fuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import tensorflow as tf

from ...engine import Partition
from ...engine.policies import save_everything
from ..keras_graph.section_loops import SectionLoop
from .array_sizes import bytes_of_variables
from .partition_cache import Step


@dataclass(frozen=True)
class SavingEstimate:
    """Estimated bytes of a training step.

    Attributes:
        lasting_bytes: Weights, and what the optimizer keeps beside them.
        gradient_bytes: The gradients of weights that are there at once.
        kept_bytes: The activations that the plain step keeps.
        peak_bytes: The peak with checkpoints.
        plain_peak_bytes: The peak without.
    """

    lasting_bytes: int
    gradient_bytes: int
    kept_bytes: int
    peak_bytes: int
    plain_peak_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """What is there whatever is recomputed."""
        return self.lasting_bytes + self.gradient_bytes


def handed_on_bytes(traced: Sequence[tuple[Step, Partition]]) -> int | None:
    """Return the bytes that cross between the ``traced`` steps; None where a size is unknown."""
    seen: set[Any] = set()
    crossing_bytes = 0
    for step, part in traced:
        size = _total(_handed_on(step, part, seen))
        if size is None:
            return None
        crossing_bytes += size
    return crossing_bytes


@dataclass(frozen=True)
class _SectionBytes:
    """What one section keeps, plainly and with checkpoints; and the gradients of its weights.

    ``largest`` is the largest activation that it keeps plainly.
    """

    handed_on: int
    plain: int
    largest: int
    saved: int
    gradients: int
    is_recomputed: bool


def estimate_saving(
    traced: Sequence[tuple[Step, Partition]], variables: Iterable[Any], *, gradients_wait: bool
) -> SavingEstimate | None:
    """Return the estimate for ``traced`` steps in running order; None where a size is unknown.

    ``variables`` are those of the model, its weights and what the optimizer keeps. Where
    ``gradients_wait``, no weight is updated before all gradients are there.
    """
    seen: set[Any] = set()
    sections: list[_SectionBytes] = []
    for step, part in traced:
        found = _bytes_of_section(step, part, seen)
        if found is None:
            return None
        count = len(step.sections) if isinstance(step, SectionLoop) else 1
        # Gradients of what all sections of a loop share are one sum.
        sections += [found] + [_without_gradients(found)] * (count - 1)
    lasting = bytes_of_variables(variables)
    held_gradients = [section.gradients for section in sections]
    if gradients_wait:
        # Sections behind run backward first.
        held_gradients = [*accumulate(reversed(held_gradients))][::-1]
    most_gradients = max(held_gradients, default=0)
    plain_peak = peak = most_gradients
    # What the sections so far handed on, and keep: plainly, and with checkpoints.
    handed_on = plain = saved = 0
    for section, gradients in zip(sections, held_gradients):
        handed_on += section.handed_on
        # A layer that runs backward is given a gradient and makes one.
        passing = min(section.plain, 2 * section.largest)
        running = handed_on + section.plain + passing + gradients
        plain_peak = max(plain_peak, running + plain)
        peak = max(peak, running + saved)
        plain += section.plain
        saved += section.saved if section.is_recomputed else section.plain
    return SavingEstimate(
        lasting_bytes=lasting,
        gradient_bytes=most_gradients,
        kept_bytes=handed_on + plain,
        peak_bytes=lasting + peak,
        plain_peak_bytes=lasting + plain_peak,
    )


def _without_gradients(section: _SectionBytes) -> _SectionBytes:
    return replace(section, gradients=0)


def _bytes_of_section(step: Step, part: Partition, seen: set[Any]) -> _SectionBytes | None:
    handed_on = _handed_on(step, part, seen)
    plain = part.under(save_everything).saved
    first = len(part.joint.trace.arguments)
    gradients = []
    for port, gradient in zip(part.joint.produced, part.joint.gradient_tensors):
        if port >= first and port not in part.joint.gradient_unused:
            gradients.append(gradient)
    sizes = []
    for tensors in (handed_on, plain, part.saved, gradients):
        size = _total(tensors)
        if size is None:
            return None
        sizes.append(size)
    handed_on_bytes, plain_bytes, saved_bytes, gradient_bytes = sizes
    largest = max((_total([tensor]) or 0 for tensor in plain), default=0)
    return _SectionBytes(
        handed_on_bytes, plain_bytes, largest, saved_bytes, gradient_bytes, step.recomputed
    )


def _handed_on(step: Step, part: Partition, seen: set[Any]) -> list[tf.Tensor]:
    keys = step.arguments if isinstance(step, SectionLoop) else step.inputs
    found = [t for key, t in zip(keys, part.joint.trace.arguments) if key not in seen]
    seen.update(keys)
    return found


def _total(tensors: Collection[tf.Tensor]) -> int | None:
    total = 0
    for tensor in tensors:
        # Strings, resources and variants have no size, and count as nothing.
        size = bytes_of(tensor.shape, tensor.dtype) if tensor.dtype.size else 0
        if size is None:
            return None
        total += size
    return total


def bytes_of(shape: Any, dtype: Any) -> int | None:
    """Return the bytes of a tensor or variable; None where its size is unknown."""
    elements = tf.TensorShape(shape).num_elements()
    return None if elements is None else elements * tf.as_dtype(dtype).size
