"""What Keras's trainer does where a model was made in the scope of a strategy of ``tf.distribute``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class ReplicatedSteps:
    """Goes in front of a model's class: its ``on_replicas`` makes the functions of ``fit`` and ``evaluate``.

    That is where the model's strategy has several replicas. Seen with Keras 3.12 to 3.15: in their place Keras compiles the
    whole step, collectives included, and takes means of scalars along an axis that these do not have.
    """

    def on_replicas(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function of one batch as the strategy's dataset gives it that runs ``step`` on each replica's part."""
        raise NotImplementedError

    def check_training(self, count: int | None) -> None:
        """Raise an error where the model cannot train by its strategy, or the ``count`` of batches is not that of others."""
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
        """Build what is not built yet by the part of a batch that one replica gets, where Keras takes the mean of all parts."""
        strategy = self._distribute_strategy  # type: ignore[attr-defined]
        if strategy is None:
            return
        if iterator is not None:
            self.check_training(iterator.num_batches)
        batches = next((batches for _, _, batches in iterator), None) if iterator is not None else None
        if batches is not None:
            data_batch = keras.tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], next(batches))
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)  # type: ignore[attr-defined]


def set_strategy(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Let ``model`` train by ``strategy``, as if it had been made in its scope."""
    model._distribute_strategy = strategy


def strategy_of(thing: Any) -> Any:
    """Return the strategy in whose scope a model, an optimizer or a variable was made; None if in none."""
    strategy = getattr(thing, "_distribute_strategy", None) or getattr(thing, "_distribution_strategy", None)
    return None if strategy is None or not _is_strategy_with_scope(strategy) else strategy


def _is_strategy_with_scope(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.Strategy) and type(strategy).__name__ != "_DefaultDistributionStrategy"


def _next(iterator: Any) -> Any:
    try:
        return next(iterator)
    except tf.errors.OutOfRangeError:
        raise StopIteration from None
