"""Eager calls of functions with custom gradients: each direction runs as a compiled function.

The engine writes programs into graphs. Called eagerly, a partitioned function runs its forward
program as a compiled function. It is recorded on the tape with a gradient that runs another one,
for the outputs that have a gradient: which these are is known only then. Variables are read before
the call and passed by value. So the tape sees each of them, and gives no gradient to a variable
that no such output depends on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.gradients import is_recorded
from ..capture.custom_vjp import Gradients, Tensors, custom_vjp, refuse_forward_mode

Gradient = Callable[[Tensors, Tensors, Sequence[Any], frozenset[int]], Gradients]


class CompiledFunctions:
    """Functions of tensors, each compiled once for its ``key``."""

    def __init__(self) -> None:
        self._compiled: dict[Hashable, Any] = {}
        # Of threads that call for the first time together.
        self._lock = threading.RLock()

    def run(self, key: Hashable, function: Callable[[Tensors], Any], inputs: Tensors) -> Any:
        """Return ``function(inputs)``, by the compiled function kept for ``key``.

        The result is a nest of tensors and None.
        """
        with self._lock:
            if key not in self._compiled:
                signature = [tf.TensorSpec(t.shape, t.dtype) for t in inputs]

                # A lambda's name hides tracebacks from errors.
                def call(*given: tf.Tensor) -> Any:
                    return function(given)

                compiled = tf.function(call, autograph=False)
                self._compiled[key] = compiled.get_concrete_function(*signature)
        return self._compiled[key](*inputs)


class EagerFunction:
    """A function of tensors with a custom gradient, called eagerly.

    ``compute(inputs)`` writes the results into a graph: ``outputs`` tensors for the caller, then
    what is kept for the gradient. ``gradient(inputs, kept, output_gradients, requested)`` runs
    eagerly and returns one gradient or None per input. Its ``kept`` are the latter results, then
    the outputs with the numbers ``kept_by_caller``; ``requested`` has the numbers of the outputs
    that are differentiated.
    """

    def __init__(
        self,
        compute: Callable[[Tensors], Tensors],
        gradient: Gradient,
        *,
        outputs: int,
        kept_by_caller: Sequence[int] = (),
        name: str,
    ) -> None:
        self._compute, self._gradient = compute, gradient
        self._outputs, self._kept_by_caller, self._name = outputs, tuple(kept_by_caller), name
        self._compiled = CompiledFunctions()

    def __call__(self, inputs: Tensors) -> list[tf.Tensor]:
        """Return the outputs for ``inputs``. Raises UnsupportedError under a ForwardAccumulator."""
        if not any(map(is_recorded, inputs)):
            refuse_forward_mode(inputs, self._name)
            return list(self._compiled.run("outputs", self._write_outputs, inputs))

        kept: list[tf.Tensor] = []

        def compute() -> Tensors:
            results = list(self._compiled.run("results", self._write_results, inputs))
            kept[:] = [*results[self._outputs :], *(results[n] for n in self._kept_by_caller)]
            return results[: self._outputs]

        def gradient(*output_gradients: tf.Tensor | None, requested: frozenset[int]) -> Gradients:
            return self._gradient(inputs, kept, output_gradients, requested)

        return custom_vjp(compute, gradient, inputs=inputs, name=self._name, outputs=self._outputs)

    def _write_results(self, inputs: Tensors) -> list[tf.Tensor]:
        return list(self._compute(inputs))

    def _write_outputs(self, inputs: Tensors) -> list[tf.Tensor]:
        return self._write_results(inputs)[: self._outputs]
