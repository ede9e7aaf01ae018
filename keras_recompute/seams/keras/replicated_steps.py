"""Steps of Keras's trainer for models made in the scope of a ``tf.distribute`` strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class ReplicatedSteps:
    """Mixin before a model's class: ``on_replicas`` makes the steps of ``fit`` and ``evaluate``.

    It is called if the model's strategy has several replicas. Keras would compile the whole step,
    collectives included, and reduce scalars along an axis that they lack. Seen with Keras 3.12 to
    3.15.
    """

    def on_replicas(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function of one distributed batch that runs ``step`` on each replica's part."""
        raise NotImplementedError

    def check_training(self, count: int | None) -> None:
        """Raise an error if the model cannot train by its strategy.

        ``count`` is this worker's number of batches, which must equal that of the others.
        """
        raise NotImplementedError

    def _make_function(self, step_function: Any) -> Any:
        if self.distribute_strategy.num_replicas_in_sync == 1:  # type: ignore[attr-defined]
            return super()._make_function(step_function)  # type: ignore[misc]
        one_step = self._autoconvert_optionals(self.on_replicas(step_function))  # type: ignore[attr-defined]

        def function(iterator: Any) -> Any:
            outputs = one_step(_next(iterator))
            for _ in range(1, self.steps_per_execution):  # type: ignore[attr-defined]
                try:
                    data = _next(iterator)
                except StopIteration:
                    break
                outputs = one_step(data)
            return outputs

        return function

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build what is not built yet from one replica's part of a batch.

        Keras would take the mean of all parts.
        """
        strategy = self._distribute_strategy  # type: ignore[attr-defined]
        if strategy is None:
            return
        if iterator is not None:
            self.check_training(iterator.num_batches)
        batches = (
            next((batches for _, _, batches in iterator), None) if iterator is not None else None
        )
        if batches is not None:
            data_batch = keras.tree.map_structure(
                lambda v: strategy.experimental_local_results(v)[0], next(batches)
            )
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)  # type: ignore[attr-defined]


def set_strategy(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Make ``model`` train by ``strategy``, as if constructed in its scope."""
    model._distribute_strategy = strategy


def strategy_of(thing: Any) -> Any:
    """Return the strategy in whose scope a model, optimizer or variable was made, or None."""
    strategy = getattr(thing, "_distribute_strategy", None) or getattr(
        thing, "_distribution_strategy", None
    )
    return None if strategy is None or not _is_strategy_with_scope(strategy) else strategy


def _is_strategy_with_scope(strategy: Any) -> bool:
    return (
        isinstance(strategy, tf.distribute.Strategy)
        and type(strategy).__name__ != "_DefaultDistributionStrategy"
    )


def _next(iterator: Any) -> Any:
    try:
        return next(iterator)
    except tf.errors.OutOfRangeError:
        raise StopIteration from None
