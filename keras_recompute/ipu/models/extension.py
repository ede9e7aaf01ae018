"""The extension of every model made in an IPUStrategy's scope (Graphcore: Keras models and fit)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ...models.graph import Graph
from ...models.workers import require_equal_counts
from ...seams.keras.training import is_within_fit
from ..configuration import config, entered
from ..configuration.unsupported import refuse
from ..pipeline.accumulate import Accumulation
from ..pipeline.executions import Pipeline, evaluation_execution, prediction_execution, training_execution
from ..pipeline.model_stages import Task
from ..pipeline.options import PipelineOptions, positive_or_none
from ..pipeline.staged_graph import check_shared_weights, check_stages, staged_graph
from ..pipeline.workers import update_of_all, with_metrics_of_all
from ..reports.profiling import reported, run
from .microbatches import (
    batch_spec,
    given_to,
    held_out,
    known_steps,
    next_microbatches,
    require_equal_batches,
    stacked,
    steps_that_fit,
)
from .optimizers import of_keras
from .training_record import TrainingRecord


class ReplicatedMetricReductionMethod(enum.Enum):
    """How metrics of replicas are put together."""

    NONE = "NONE"
    LIST = "LIST"
    SUM = "SUM"
    MEAN = "MEAN"


_NOT_OVERRIDDEN = (
    "train_step",
    "test_step",
    "predict_step",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)

_EAGER = "run_eagerly=True is not possible: an execution is one compiled program"


# Keras turns the bases of functional models into functional ones, so this must not be a model itself.
_Model: Any = keras.Model if TYPE_CHECKING else object


class Extension(_Model):
    """The methods that a model gains. Goes in front of a Keras model class.

    One training execution is one compiled program: ``steps_per_execution`` microbatches, and an optimiser update after
    every ``gradient_accumulation_steps_per_replica`` of them. A model with pipeline stages runs as a pipeline.
    """

    _pipelining: PipelineOptions | None = None
    _accumulation: PipelineOptions | None = None
    _batch_spec: Any = None
    _call_is_given = False  # whether a user's class brings a ``call`` of its own
    _levels = 1
    _steps_asked = _steps_cut = 0  # what steps_per_execution was, and what it was cut to
    _steps_tested = 0  # the steps_per_execution that test_function is for
    steps_per_execution: int
    optimizer: Any
    _execution: Any
    _pipelines: dict[Task, Pipeline]
    train_function: Any
    test_function: Any
    predict_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.training_record = TrainingRecord()
        # A context entered around each run of the training program, when its data is there: for measuring.
        self.around_execution: Callable[[], AbstractContextManager[Any]] = nullcontext
        # The strategy of several processes that train this model together, each with microbatches of its own.
        self.workers: tf.distribute.Strategy | None = None
        self._made_in = entered.current()
        super().__init__(*args, **kwargs)

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Set how the pipeline trains (Graphcore: Keras models). Raises ValueError for values that can never work."""
        self._pipelining = PipelineOptions.of_pipeline(
            gradient_accumulation_steps_per_replica,
            device_mapping,
            accumulate_outfeed,
            gradient_accumulation_reduction_method,
            **pipelining_kwargs,
        )
        self._forget_programs()

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Set gradient accumulation for a model that is not a pipeline; training a pipeline with it is a ValueError."""
        self._accumulation = PipelineOptions.of_accumulation(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            **gradient_accumulation_optimizer_kwargs,
        )
        self._forget_programs()

    def set_infeed_queue_options(self, prefetch_depth: int | None = None) -> None:
        """Accept how many microbatches wait in front of the device. The whole execution's data waits here."""
        positive_or_none("prefetch_depth", prefetch_depth)

    def set_outfeed_queue_options(self, buffer_depth: int | None = None) -> None:
        """Accept how many results wait behind the device. The whole execution's results wait here."""
        positive_or_none("buffer_depth", buffer_depth)

    def set_replication_options(self, replicated_metric_reduction_method: Any = "NONE") -> None:
        """Accept how metrics of replicas are put together: there is one replica, whose metrics they are."""
        names = [method.name for method in ReplicatedMetricReductionMethod]
        name = getattr(replicated_metric_reduction_method, "name", replicated_metric_reduction_method)
        if not isinstance(name, str) or name.upper() not in names:
            raise ValueError(
                f"replicated_metric_reduction_method must be one of {', '.join(names)}, not "
                f"{replicated_metric_reduction_method!r}"
            )

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Accept either way: callbacks run after each execution, with the same arguments, as its results arrive together."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as Keras does. An execution is always one compiled program; eager running is a RuntimeError."""
        given = given_to(super().compile, *args, **kwargs)
        if given.get("run_eagerly"):
            raise RuntimeError(_EAGER)
        if "optimizer" in given:  # the first argument
            args, kwargs = args[1:], {name: value for name, value in kwargs.items() if name != "optimizer"}
            args = (of_keras(given["optimizer"]), *args)
        super().compile(*args, **{**kwargs, "jit_compile": True})
        self.steps_per_execution = int(self.steps_per_execution)  # a dataset's cardinality is an int64 tensor
        self._steps_cut = 0
        self._forget_programs()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile with what ``get_compile_config`` returned: Keras's own would not, as ``compile`` is not Keras's."""
        if config:
            self.compile(**keras.saving.deserialize_keras_object(config))
        if config and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train. One step is one microbatch; callbacks run once per execution (Graphcore: fit).

        Raises ValueError for data whose batches are not all of one known size: datasets with an open batch dimension,
        arrays with a partial last batch, generators; and for such validation data. RuntimeError where a method that runs a
        step is overridden. InvalidArgumentError where ``workers`` have different numbers of microbatches.
        """
        given = given_to(super().fit, x, y, *args, **kwargs)
        size = given.get("batch_size")
        trained, validation = held_out(x, given.get("validation_split"), given.get("validation_data"))
        self._prepare(trained, size, given.get("steps_per_epoch"))
        if self.workers:
            count = given.get("steps_per_epoch") or known_steps(trained, size)
            require_equal_counts(self.workers, count, "Give each as many microbatches: an update takes some of every worker")
        if validation is not None:
            size = given.get("validation_batch_size") or size
            require_equal_batches(validation, size)
            steps_that_fit(self.steps_per_execution, given.get("validation_steps") or known_steps(validation, size))
        return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return loss and metrics; data and steps are as for ``fit``."""
        given = given_to(super().evaluate, x, y, *args, **kwargs)
        size, steps = given.get("batch_size"), given.get("steps")
        if not is_within_fit(given):
            self._prepare(x, size, steps)
            return super().evaluate(x, y, *args, **kwargs)
        in_training = self.steps_per_execution  # in fit, which has checked the data and goes on with these steps
        self.steps_per_execution = min(in_training, steps or known_steps(x, size) or in_training)
        try:
            return super().evaluate(x, y, *args, **kwargs)
        finally:
            self.steps_per_execution = in_training

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the predictions for all microbatches; data and steps are as for ``fit``."""
        given = given_to(super().predict, x, *args, **kwargs)
        self._prepare(x, given.get("batch_size"), given.get("steps"))
        return super().predict(x, *args, **kwargs)

    def _prepare(self, x: Any, batch_size: int | None, steps: int | None) -> None:
        not_overridden = (*_NOT_OVERRIDDEN, *(() if self._call_is_given else ("call",)))
        for cls in type(self).__mro__:
            overridden = [name for name in not_overridden if name in vars(cls)]
            if overridden and not cls.__module__.startswith(("keras.", "keras_recompute.")):
                raise RuntimeError(
                    f"{cls.__name__} overrides {overridden[0]}, but an execution is one compiled program that calls the layers "
                    f"itself: leave {overridden[0]} to Keras"
                )
        if self.run_eagerly:
            raise RuntimeError(_EAGER)
        require_equal_batches(x, batch_size)
        # A cut holds for the data that was too short alone.
        asked = self._steps_asked if self.steps_per_execution == self._steps_cut else self.steps_per_execution
        fitting = steps_that_fit(asked, steps or known_steps(x, batch_size))
        self._steps_asked, self._steps_cut = asked, fitting
        if fitting != self.steps_per_execution:
            self.steps_per_execution = fitting
            self._forget_programs()
        spec = batch_spec(x, batch_size)
        if spec != self._batch_spec:
            self._batch_spec = spec
            if self._call_is_given:
                self._forget_programs()

    def get_metrics_result(self) -> Any:
        """Return the metrics; those of several processes are of what all have seen, and all have to ask."""
        if self.workers is None or not tf.executing_eagerly():
            return super().get_metrics_result()
        return with_metrics_of_all(self, self.workers, super().get_metrics_result)

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return the function that Keras calls once per execution: it takes microbatches from an iterator."""
        if self.train_function is None or force:
            execution, accumulation = self.execution, self._accumulation_of_training()
            update = update_of_all(self, accumulation, self.workers) if self.workers else None
            pipeline = self._pipeline(Task.TRAIN)
            schedule = pipeline.schedule(trains=True) if pipeline else None

            def train(iterator: Iterator[Any]) -> Any:
                programs, logs = self.steps_per_execution // accumulation.microbatches, None
                # All data first, as where there is one program: without enough of it nothing is trained.
                for feed in [next_microbatches(iterator, accumulation.microbatches) for _ in range(programs)]:
                    with self.around_execution():
                        if update is None:
                            losses, norms, log, logs = self._run(execution, feed, pipeline)
                        else:
                            gradients, loss, log = self._run(execution, feed, pipeline)
                            losses, norms = update(gradients, loss)
                    self.training_record.add(losses, norms, log, schedule, accumulation.steps)
                return self.get_metrics_result() if logs is None else logs

            self.train_function = train
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Return the function that Keras calls once per execution of ``evaluate``."""
        if self._steps_tested != self.steps_per_execution:
            self._steps_tested, self.test_function = self.steps_per_execution, None
            self._pipelines.pop(Task.EVALUATE, None)
        pipeline = self._pipeline(Task.EVALUATE)
        if pipeline is None:
            if self.test_function is None or force:
                super().make_test_function(force=True)
                self.test_function = reported(self.test_function, self)
            return self.test_function
        if self.test_function is None or force:
            execution = evaluation_execution(self, pipeline)
            self.test_function = lambda iterator: self._run(
                execution, next_microbatches(iterator, self.steps_per_execution), pipeline
            )
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Return the function that Keras calls once per execution of ``predict``, with a list of microbatches."""
        pipeline = self._pipeline(Task.PREDICT)
        if pipeline is None:
            if self.predict_function is None or force:
                super().make_predict_function(force=True)
                self.predict_function = reported(self.predict_function, self)
            return self.predict_function
        if self.predict_function is None or force:
            execution = prediction_execution(pipeline)
            self.predict_function = lambda data: self._run(execution, stacked(list(data)), pipeline)
        return self.predict_function

    @property
    def execution(self) -> Any:
        """The training program as a ``tf.function`` of ``feed``: microbatches stacked along a new first axis.

        It returns the losses and gradient norms, one per update, the log of the stages that ran for the last update, and
        the metrics. In one of several processes it has one update and returns what ``gradients_of_one_update`` does. An
        addition to Graphcore's API.
        """
        accumulation, pipeline = self._accumulation_of_training(), self._pipeline(Task.TRAIN)
        if self._execution is None:
            self._execution = training_execution(self, accumulation, pipeline, is_one_of_several=bool(self.workers))
        return self._execution

    def feed_signature(self, element_spec: Any) -> Any:
        """Return the signature of ``execution``'s argument for a dataset whose elements are like ``element_spec``."""
        count = self._accumulation_of_training().microbatches
        return tf.nest.map_structure(lambda spec: tf.TensorSpec((count, *spec.shape), spec.dtype), element_spec)

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """The numbers of the pipeline stages in use; empty if the model is not a pipeline."""
        return tuple(sorted({call.stage for call in self._graph(Task.TRAIN).calls if call.stage is not None}))

    @property
    def pipeline(self) -> Pipeline | None:
        """The stages as they train, with their options; None if the model is not a pipeline. Raises as training does."""
        return self._pipeline(Task.TRAIN)

    def functional_of(self, task: Task) -> keras.Model | None:
        """Return the functional model whose layers this model calls for ``task``; None if it cannot be known."""
        raise NotImplementedError

    def _graph(self, task: Task) -> Graph:
        functional = self.functional_of(task)
        if functional is None:
            return Graph((), (), ())
        graph = staged_graph(functional)
        check_stages(graph)
        return graph

    def _pipeline(self, task: Task) -> Pipeline | None:
        """Check what can only be checked when the pipeline is built (Graphcore: Keras models and fit), and return it."""
        graph = self._graph(task)
        stages = sorted({call.stage for call in graph.calls if call.stage is not None})
        if not stages:
            self._refuse_replicas(1)
            return None
        if task not in self._pipelines:
            options = self._pipelining or PipelineOptions()
            is_training = task is Task.TRAIN
            count = self._accumulation_of_training().steps if is_training else self.steps_per_execution
            options.check(stages, trains=is_training, microbatches=count)
            recompute = config.current().allow_recompute
            pipeline = Pipeline(self, self.functional_of(task), graph, options, recompute, self._levels)
            check_shared_weights(graph, pipeline.devices)
            self._refuse_replicas(1 + max(pipeline.devices))
            self._pipelines[task] = pipeline
        return self._pipelines[task]

    def _refuse_replicas(self, ipus_used: int) -> None:
        """Raise NotImplementedError where the device has IPUs for more than one copy of the model."""
        ipus = config.devices()[0]
        if ipus >= 2 * ipus_used:
            raise refuse("replication", f"{ipus} IPUs for a model that uses {ipus_used}")

    def _accumulation_of_training(self) -> Accumulation:
        is_pipeline = bool(self.pipeline_stages)
        if is_pipeline and self._accumulation is not None:
            raise ValueError(
                "set_gradient_accumulation_options is for models that are not pipelined, and this one is: give the steps to "
                "set_pipelining_options(gradient_accumulation_steps_per_replica=N)"
            )
        options = self._pipelining if is_pipeline else self._accumulation
        steps = options.accumulation_steps if options else None
        if is_pipeline and steps is None:
            raise ValueError(
                "training a pipelined model needs gradient accumulation: call "
                "set_pipelining_options(gradient_accumulation_steps_per_replica=N)"
            )
        steps = steps or 1
        if self.steps_per_execution % steps:
            raise RuntimeError(
                f"steps_per_execution={self.steps_per_execution} must be a multiple of the gradient accumulation steps, {steps}"
            )
        microbatches = steps if self.workers else self.steps_per_execution
        return Accumulation(microbatches, steps, (options or PipelineOptions()).reduction)

    def _run(self, execution: Any, feed: Any, pipeline: Pipeline | None) -> Any:
        places = pipeline.ipu_of_layer if pipeline else {}
        return run(execution, feed, input_feed=["feed"], ipu_of_layer=places, model=self)

    def _forget_programs(self) -> None:
        self.train_function = self.test_function = self.predict_function = self._execution = None
        # Past the tracking of layers, which a built model has closed.
        object.__setattr__(self, "_pipelines", {})
