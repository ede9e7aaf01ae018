"""Which sections of a loop lie on the path of a gradient.

A loop over isomorphic sections reads stacks of their weights. The gradient of a stack has zeros for
a section that leads to no loss, where plain Keras has no gradient: an optimizer leaves the weights,
but with zeros it applies weight decay and momentum to them. So it is noted which results of the
loop a gradient comes in for. The weights of sections behind the last of those get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...engine import custom_vjp


class GradientPaths:
    """The sections of one run of a loop that a gradient comes in for.

    Args:
        sections: The number of sections.
        is_chain: Whether each section hands values to the next.
    """

    def __init__(self, sections: int, *, is_chain: bool) -> None:
        self._sections, self._is_chain = sections, is_chain
        self._reached: set[int] = set()

    def stack(self, weights: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Return each of ``weights``, which has one tensor per section, as one stack."""
        inputs: list[tf.Tensor] = []
        for each in weights:
            inputs.extend(map(tf.convert_to_tensor, each))
        if not inputs:
            return []
        count = self._sections

        def gradient(*incoming: tf.Tensor) -> list[tf.Tensor | None]:
            # TensorFlow has called the gradients of all results that have one before this one.
            on_path = self._on_path()
            # The next backward pass starts with none.
            self._reached.clear()
            return [g if number % count in on_path else None for number, g in enumerate(incoming)]

        # Stacked behind it, since passes recognize stacks by their operation.
        passed = custom_vjp(lambda: inputs, gradient, inputs=inputs, name=name)
        return [tf.stack(passed[first : first + count]) for first in range(0, len(passed), count)]

    def unstack(self, stack: tf.Tensor, name: str) -> list[tf.Tensor]:
        """Return the results of all sections, which the loop returned as one ``stack``."""

        def gradient(*parts: tf.Tensor, requested: frozenset[int]) -> list[tf.Tensor]:
            self._reached |= requested
            return [tf.stack(parts)]

        return custom_vjp(
            lambda: tf.unstack(stack),
            gradient,
            inputs=[stack],
            name=name,
            outputs=self._sections,
        )

    def whole(self, result: tf.Tensor, name: str) -> list[tf.Tensor]:
        """Return a ``result`` that is of the last section, or of all of them."""

        def gradient(incoming: tf.Tensor) -> list[tf.Tensor]:
            self._reached.update(range(self._sections))
            return [incoming]

        return custom_vjp(lambda: [tf.identity(result)], gradient, inputs=[result], name=name)

    def _on_path(self) -> set[int]:
        if self._is_chain and self._reached:
            return set(range(max(self._reached) + 1))
        return set(self._reached)
