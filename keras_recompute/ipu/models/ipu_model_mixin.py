"""The methods that every model made in an IPUStrategy's scope gains.

Source: Graphcore, Keras models and fit.
"""

from __future__ import annotations

from typing import Any

import keras

from ...models.execution.worker_roles import require_equal_counts
from ...seams.keras.training import build_for_fit, is_within_fit
from ..pipeline.emulated_replicas import are_seeded_identically
from ..pipeline.model_stages import Task
from .executables import Executables
from .microbatches import (
    batch_spec,
    bound_arguments,
    known_steps,
    require_equal_batches,
    split_validation,
    steps_that_fit,
)
from .replica_sharding import example_batch, log_effective_batch, shard_arguments, steps_of_each
from .tf1_optimizers import keras_counterpart

_NOT_OVERRIDDEN = (
    "train_step",
    "test_step",
    "predict_step",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)

_EAGER = (
    "run_eagerly=True is not supported, because an execution is one compiled program: leave it out"
)


class IpuModelMixin(Executables):
    """Graphcore's methods of a model, to put before a Keras model class.

    One training execution is one compiled program. It runs ``steps_per_execution`` microbatches,
    with an optimiser update after every ``gradient_accumulation_steps_per_replica`` of them. A
    model with pipeline stages runs as a pipeline.
    """

    _batch_spec: Any = None
    # The number of replicas of the current programs, and whether all draw the same numbers.
    _replicas_prepared = (1, False)
    # Whether a user's class has its own ``call``.
    _call_is_given = False
    # The requested steps_per_execution, and the number that it was reduced to.
    _steps_requested = _steps_cut = 0

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as Keras does, always with ``jit_compile``.

        Raises RuntimeError for ``run_eagerly=True``: an execution is one compiled program.
        """
        given = bound_arguments(super().compile, *args, **kwargs)
        if given.get("run_eagerly"):
            raise RuntimeError(_EAGER)
        if "optimizer" in given:  # the first argument
            kwargs.pop("optimizer", None)
            args = (keras_counterpart(given["optimizer"]), *args[1:])
        super().compile(*args, **{**kwargs, "jit_compile": True})
        # It may be a dataset's cardinality, which is an int64 tensor.
        self.steps_per_execution = int(self.steps_per_execution)
        self._steps_cut = 0
        self._forget_programs()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile with the result of ``get_compile_config``.

        Keras's own method does nothing if ``compile`` is overridden, as it is here.
        """
        if config:
            self.compile(**keras.saving.deserialize_keras_object(config))
        if config and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train: one step is one microbatch, and callbacks run once per execution.

        Raises:
            ValueError: For training or validation data whose batches are not all of one known size:
                datasets with an open batch dimension, arrays with a partial last batch, generators.
            RuntimeError: If a method that runs a step is overridden.
            InvalidArgumentError: If ``workers`` have different numbers of microbatches.
        """
        given = bound_arguments(super().fit, x, y, *args, **kwargs)
        size = given.get("batch_size")
        trained, validation = split_validation(
            x, given.get("validation_split"), given.get("validation_data")
        )
        replicas = self._prepare(Task.TRAIN, trained, size, given.get("steps_per_epoch"))
        if self.workers:
            count = given.get("steps_per_epoch") or known_steps(trained, size)
            require_equal_counts(
                self.workers,
                count,
                "Give each worker as many microbatches: an update takes some of every worker",
            )
        if validation is not None:
            size = given.get("validation_batch_size") or size
            require_equal_batches(validation, size)
            steps = steps_of_each(
                given.get("validation_steps") or known_steps(validation, size), replicas
            )
            # It raises before training begins instead of at the first validation.
            steps_that_fit(self.steps_per_execution, steps)
        return super().fit(**self._sharded_arguments(given, replicas, "steps_per_epoch"))

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return loss and metrics; data and steps are as for ``fit``."""
        given = bound_arguments(super().evaluate, x, y, *args, **kwargs)
        size, steps = given.get("batch_size"), given.get("steps")
        if not is_within_fit(given):
            replicas = self._prepare(Task.EVALUATE, x, size, steps)
            return super().evaluate(**self._sharded_arguments(given, replicas, "steps"))
        self.equalize_replicas()
        # This call comes from fit, which has checked the data and continues with its own steps.
        in_training = self.steps_per_execution
        self.steps_per_execution = min(in_training, steps or known_steps(x, size) or in_training)
        try:
            return super().evaluate(x, y, *args, **kwargs)
        finally:
            self.steps_per_execution = in_training
            self.equalize_replicas()

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the predictions for all microbatches; data and steps are as for ``fit``."""
        given = bound_arguments(super().predict, x, *args, **kwargs)
        replicas = self._prepare(Task.PREDICT, x, given.get("batch_size"), given.get("steps"))
        return super().predict(**self._sharded_arguments(given, replicas, "steps"))

    def _sharded_arguments(
        self, given: dict[str, Any], replicas: int, steps_name: str
    ) -> dict[str, Any]:
        """Return the arguments as Keras gets them.

        With several replicas the model is built here, for the microbatch of one.
        """
        if replicas == 1:
            return given
        batch = example_batch(
            (given["x"], given.get("y"), given.get("sample_weight")), given.get("batch_size")
        )
        # Else it predicts, and has no use for metrics.
        if "y" in given:
            build_for_fit(self, batch)
        self.equalize_replicas()
        if steps_name == "steps_per_epoch":
            samples = int(keras.tree.flatten(batch[0])[0].shape[0])
            log_effective_batch(samples, self.accumulation_steps, replicas)
        return shard_arguments(given, replicas, steps_name=steps_name)

    def _prepare(self, task: Task, x: Any, batch_size: int | None, steps: int | None) -> int:
        """Check the data for ``task``, discard outdated programs, and return the replica count."""
        not_overridden = (*_NOT_OVERRIDDEN, *(() if self._call_is_given else ("call",)))
        for cls in type(self).__mro__:
            overridden = [name for name in not_overridden if name in vars(cls)]
            if overridden and not cls.__module__.startswith(("keras.", "keras_recompute.")):
                raise RuntimeError(
                    f"{cls.__name__} overrides {overridden[0]}, but an execution is one compiled "
                    f"program that calls the layers itself: do not override {overridden[0]}"
                )
        if self.run_eagerly:
            raise RuntimeError(_EAGER)
        require_equal_batches(x, batch_size)
        spec = batch_spec(x, batch_size)
        if spec != self._batch_spec:
            self._batch_spec = spec
            # The user's call is traced for one shape of data, so another shape needs other
            # programs.
            if self._call_is_given:
                self._forget_programs()
        replicas = self.replica_count(task)
        if (replicas, are_seeded_identically()) != self._replicas_prepared:
            self._replicas_prepared = (replicas, are_seeded_identically())
            self._forget_programs()
        # A reduced number holds only for the data that was too short.
        requested = (
            self._steps_requested
            if self.steps_per_execution == self._steps_cut
            else self.steps_per_execution
        )
        fitting = steps_that_fit(
            requested, steps_of_each(steps or known_steps(x, batch_size), replicas)
        )
        self._steps_requested, self._steps_cut = requested, fitting
        if fitting != self.steps_per_execution:
            self.steps_per_execution = fitting
            self._forget_programs()
        return replicas
