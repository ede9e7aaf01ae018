"""Training on several replicas by ``tf.distribute``, on one or more machines, in compiled programs.

XLA has no collectives on a CPU, so a step that sums gradients over replicas cannot be compiled as a
whole. Here each replica compiles what it does alone: the forward pass, the backward pass, and the
metrics. The optimizer's part, which sums the gradients, follows outside.

Without jit the whole step is one graph. There a section's backward pass waits for the sums and the
updates of the sections behind it, on all replicas (``engine.emit.update_order``). It does so where
the numbers of samples are known and not zero: in all but a last batch that is smaller.

A replica's loss is the mean over its own samples. Where a batch does not divide, gradients are
weighted by the numbers of samples, so that their sum is that of the whole batch. A replica without
samples computes nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import tensorflow as tf

from ...engine import ordered_updates
from ...errors import InvalidArgumentError, RecomputeWarning
from ...seams.keras.replicated_steps import ReplicatedSteps, set_strategy, strategy_of
from ...seams.keras.training import has_own_train_step
from ...seams.tensorflow.cluster import leave_strategy_scopes
from .worker_roles import callbacks_of_worker, require_equal_counts, worker_number

_Model: Any = keras.Model if TYPE_CHECKING else object
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _signed_as(plain: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Return a decorator that gives a method the signature of ``plain``."""

    def sign(method: _Method) -> _Method:
        # mypy knows no such attribute of functions.
        setattr(method, "__signature__", inspect.signature(plain))  # noqa: B010
        return method

    return sign


class ReplicatedTraining(ReplicatedSteps, _Model):
    """A base class of models that train under ``MirroredStrategy`` and its multi-worker kind.

    It stands before the model's class. Source: TensorFlow's guide to distributed training with
    Keras, for what a global batch and a replica's share of it are.
    """

    _compiled_a_part = False

    def adopt_weights_strategy(self) -> None:
        """Train by the strategy in whose scope the weights were made, wherever the model was."""
        made_in = {strategy_of(variable.value) for variable in self.variables} - {None}
        if strategy_of(self) is None and len(made_in) == 1:
            set_strategy(made_in.pop(), self)

    @_signed_as(keras.Model.fit)
    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as Keras does; with several processes only the first writes the callbacks' files.

        Raises InvalidArgumentError where processes have different numbers of batches.
        """
        given = inspect.signature(super().fit).bind(x, y, *args, **kwargs)
        if "callbacks" in given.arguments:
            given.arguments["callbacks"] = callbacks_of_worker(
                given.arguments["callbacks"], self.distribute_strategy
            )
        return super().fit(*given.args, **given.kwargs)

    def make_train_function(self, force: bool = False) -> Any:
        """Make the function as Keras does, once the optimizer has its variables.

        TensorFlow traces a function twice if it creates variables, and for a model of a hundred
        layers a trace takes many seconds.
        """
        optimizer = self.optimizer
        is_unbuilt = optimizer is not None and not optimizer.built
        is_alone = self.distribute_strategy.num_replicas_in_sync == 1
        # A train_step of the user's own may train some of the weights only.
        if is_unbuilt and is_alone and not has_own_train_step(self):
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def check_training(self, count: int | None) -> None:
        strategy = self.distribute_strategy
        compiled = [variable.value for variable in self.metrics_variables]
        if self.optimizer is not None:
            compiled.append(self.optimizer)
        if any(strategy_of(each) is not strategy for each in compiled):
            raise InvalidArgumentError(
                f"{self.name!r} would not train on all replicas: its compile call, "
                f"optimizer or metrics are from outside the scope of the "
                f"{type(strategy).__name__} that made its weights. Make them, and call compile, "
                "inside strategy.scope()"
            )
        if worker_number(strategy) is not None:
            advice = "Give all workers the same data: TensorFlow takes each worker's share of it"
            require_equal_counts(strategy, count, advice)

    def on_replicas(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        strategy = self.distribute_strategy

        def on_all(data: Any) -> Any:
            self._compiled_a_part = False
            with ordered_updates() if self._updates_in_backward else nullcontext():
                results = strategy.run(step, args=(data,))
            if self.jit_compile and not self._compiled_a_part:
                warnings.warn(
                    f"jit_compile=True compiles nothing of {self.name!r} on several replicas, "
                    "because its class sums gradients in a train_step of its own. Call "
                    "super().train_step(data) in it, which compiles its part",
                    RecomputeWarning,
                    stacklevel=2,
                )
            return tf.nest.map_structure(
                lambda value: strategy.reduce("MEAN", value, axis=None), results
            )

        return (
            on_all
            if self.run_eagerly
            else tf.function(on_all, reduce_retracing=True, autograph=False)
        )

    @property
    def _updates_in_backward(self) -> bool:
        """Whether sections wait for the updates of those behind them, where shapes are known."""
        # A replica's program under jit is one XLA program, which cannot sum in its middle. With
        # several workers each section would wait for the network.
        return not self.jit_compile and worker_number(self.distribute_strategy) is None

    def train_step(self, data: Any) -> Any:
        """Train on one batch, or on a replica's part of it."""
        if not _is_one_of_several():
            with ordered_updates():
                return super().train_step(data)
        # The variables of each call of the optimizer. AutoGraph refuses annotated names here.
        trained = list[Any]()

        def part(data: Any) -> Any:
            logs, gradients, variables = self._held_back(data)
            trained[:] = variables
            return logs, gradients

        logs, gradients = self._compiled(part, data)
        factor = self._share(_samples(data))
        for each, variables in zip(gradients, trained):
            self._update([_scaled(g, factor) for g in each], variables)
        return logs

    def compiled_step(self, data: Any) -> Any:
        """Do the compiled part of a training step: all of it, or a replica's part of it."""
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return self.train_step(data)
        local = strategy.extended.worker_devices
        number = len(local) * (worker_number(strategy) or 0)  # of the first replica on this worker
        with tf.distribute.ReplicaContext(strategy, number), tf.device(local[0]):
            logs, gradients, _ = self._held_back(data)
        return logs, gradients

    def _held_back(self, data: Any) -> tuple[Any, list[Any], list[Any]]:
        """Return the results of the training step, and what its optimizer did not yet apply.

        That is the gradients and the variables of each call of the optimizer.
        """
        # AutoGraph refuses annotated names here too.
        unapplied, trained = list[Any](), list[Any]()

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            unapplied.append(list(gradients))
            trained.append(trainable_variables)

        self.optimizer.__dict__["apply"] = apply  # an attribute would be tracked
        try:
            return super().train_step(data), unapplied, trained
        finally:
            del self.optimizer.__dict__["apply"]

    def _update(self, gradients: list[Any], variables: Any) -> None:
        """Sum ``gradients`` over the replicas, and apply the optimizer to the sums once.

        Keras applies it on each replica. That would sum gradients that are clipped already. It
        would sum nothing inside branches, such as those for loss scales and accumulated gradients.
        """
        context = tf.distribute.get_replica_context()
        there = _numbers_present(gradients)
        # TensorFlow packs gradients up to this size into one sum, which waits for all of them. By
        # default (0) it packs all. A pack ends once it is larger, here behind each gradient.
        pack_bytes = 1 if self._updates_in_backward else 0
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack_bytes)
        sums = context.all_reduce("SUM", list(map(gradients.__getitem__, there)), options)

        def apply(strategy: tf.distribute.Strategy, sums: list[Any]) -> None:
            summed: list[Any] = [None] * len(gradients)
            for number, value in zip(there, sums):
                summed[number] = strategy.experimental_local_results(value)[0]
            with leave_strategy_scopes():
                self.optimizer.apply(summed, variables)

        context.merge_call(apply, args=(sums,))

    def test_step(self, data: Any) -> Any:
        """Evaluate one batch, or a replica's part of it."""
        return (
            self._compiled(super().test_step, data)
            if _is_one_of_several()
            else super().test_step(data)
        )

    def _compiled(self, part: Callable[[Any], Any], data: Any) -> Any:
        """Return ``part(data)``; zeros in its shapes without samples.

        It is a program of its own, except where its sections wait for updates outside of it.
        """
        self._compiled_a_part = True
        samples = _samples(data)
        has_samples = bool(tf.get_static_value(samples))  # False where that is not known
        if has_samples and (self.run_eagerly or self._updates_in_backward):
            return part(data)
        function = tf.function(part, jit_compile=self.jit_compile, autograph=False)
        if has_samples:
            return function(data)
        like = function.get_concrete_function(data).structured_outputs
        leaves = tf.nest.flatten(like)
        # A weight that no loss depends on has no gradient, and a branch returns tensors alone.
        there = _numbers_present(leaves)

        def computed() -> list[Any]:
            results = tf.nest.flatten(function(data))
            return list(map(results.__getitem__, there))

        def zeros() -> list[Any]:
            return [_zeros(leaves[number]) for number in there]

        results = tf.cond(samples > 0, computed, zeros)
        found = results if isinstance(results, (list, tuple)) else [results]
        values: list[Any] = [None] * len(leaves)
        for number, value in zip(there, found):
            values[number] = value
        return tf.nest.pack_sequence_as(like, values)

    def _share(self, samples: tf.Tensor) -> tf.Tensor | None:
        """Return this replica's ``samples`` over the mean of all; None where losses are sums."""
        losses = keras.tree.flatten(self.loss)
        if any(getattr(loss, "reduction", "mean") in ("sum", None, "none") for loss in losses):
            return None
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("SUM", tf.cast(samples, tf.float32))
        return tf.cast(samples, tf.float32) * context.num_replicas_in_sync / total


def _numbers_present(values: list[Any]) -> list[int]:
    return [number for number, value in enumerate(values) if value is not None]


def _is_one_of_several() -> bool:
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def _samples(data: Any) -> tf.Tensor:
    """Return the number of samples: a constant where it is known, as in all but the last batch."""
    first = next(value for value in tf.nest.flatten(data) if value is not None)
    known = first.shape[0]
    return tf.shape(first)[0] if known is None else tf.constant(known)


def _scaled(gradient: Any, factor: tf.Tensor | None) -> Any:
    if gradient is None or factor is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _scaled(gradient.values, factor), gradient.indices, gradient.dense_shape
        )
    return gradient * tf.cast(factor, gradient.dtype)


def _zeros(like: Any) -> Any:
    """Return zeros in the shape of ``like``, without samples; of a sparse gradient no slices."""
    if isinstance(like, tf.IndexedSlices):
        kind = like.dense_shape.dtype
        is_known = like.shape.is_fully_defined()
        shape = tf.constant(like.shape.as_list(), kind) if is_known else _zeros(like.dense_shape)
        return tf.IndexedSlices(_zeros(like.values), _zeros(like.indices), shape)
    return tf.zeros([size or 0 for size in like.shape], like.dtype)
