"""The compiled programs of a model made in an IPUStrategy's scope.

Keras calls them through the functions that this module makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from ...models.keras_graph.call_graph import Graph
from ...seams.keras.layers import layers_in
from ..configuration import config
from ..configuration.current_strategy import current_strategy
from ..configuration.device import FIRST_DEVICE, device_number, replicas_on
from ..configuration.refusals import refuse
from ..pipeline.accumulation import Accumulation
from ..pipeline.emulated_replicas import Replicas
from ..pipeline.executions import (
    Pipeline,
    evaluation_execution,
    prediction_execution,
    training_execution,
)
from ..pipeline.model_stages import Task
from ..pipeline.multiworker_update import update_of_all, with_metrics_of_all
from ..pipeline.pipelining_options import PipelineOptions
from ..pipeline.staged_graph import check_shared_weights, check_stages, staged_graph
from ..pipeline.stages import Stages
from ..reports.profiling import run_reported, with_reports
from .replica_sharding import next_of_all, of_all
from .settings import Settings
from .training_record import TrainingRecord


class Executables(Settings):
    """Compiles a model and its settings into one program per execution."""

    _levels = 1
    assigned_stages: Stages = None  # what set_pipeline_stage_assignment was given
    _replicas: Replicas | None = None
    # The metrics of all replicas as an execution put them together.
    _logs_of_replicas: Any = None
    # The steps_per_execution that test_function is for.
    _steps_tested = 0
    steps_per_execution: int
    optimizer: Any
    _execution: Any
    _pipelines: dict[Task, Pipeline]
    train_function: Any
    test_function: Any
    predict_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.training_record = TrainingRecord()
        # A context entered around each run of the training program, when its data is there: for
        # measuring.
        self.around_execution: Callable[[], AbstractContextManager[Any]] = nullcontext
        # The strategy of several processes that train this model together, each with microbatches
        # of its own.
        self.workers: tf.distribute.Strategy | None = None
        self._made_in = current_strategy()
        super().__init__(*args, **kwargs)

    def get_metrics_result(self) -> Any:
        """Return the metrics.

        Several processes return the metrics of all their data together, and all of them must call
        this.
        """
        if not tf.executing_eagerly():
            return super().get_metrics_result()
        if self._logs_of_replicas is not None:
            return self._logs_of_replicas
        if self.workers is None:
            return super().get_metrics_result()
        return with_metrics_of_all(self, self.workers, super().get_metrics_result)

    def reset_metrics(self) -> None:
        """Reset the metrics of every replica."""
        super().reset_metrics()
        self._logs_of_replicas = None
        if self._replicas is not None:
            self._replicas.equalize_metrics()

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return the function that Keras calls once per execution of ``fit``.

        It takes an iterator of microbatches.
        """
        if self.train_function is None or force:
            execution, accumulation = self.execution, self._accumulation_of_training()
            update = update_of_all(self, accumulation, self.workers) if self.workers else None
            pipeline, replicas = self._pipeline(Task.TRAIN), self._replicas_of(Task.TRAIN)
            schedule = pipeline.schedule(trains=True) if pipeline else None

            def train(iterator: Iterator[Any]) -> Any:
                programs, logs = self.steps_per_execution // accumulation.microbatches, None
                # All data first, as where there is one program: without enough of it nothing is
                # trained.
                for feed in [
                    next_of_all(iterator, accumulation.microbatches, replicas.runs)
                    for _ in range(programs)
                ]:
                    with self.around_execution():
                        if update is None:
                            losses, norms, log, logs = self._run(
                                execution, feed, pipeline, replicas.count
                            )
                        else:
                            gradients, loss, log = self._run(
                                execution, feed, pipeline, replicas.count
                            )
                            losses, norms = update(gradients, loss)
                    self.training_record.add(losses, norms, log, schedule, accumulation.steps)
                return (
                    self.get_metrics_result()
                    if logs is None
                    else self._store_logs(logs, replicas.count)
                )

            self.train_function = train
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Return the function that Keras calls once per execution of ``evaluate``."""
        if self._steps_tested != self.steps_per_execution:
            self._steps_tested, self.test_function = self.steps_per_execution, None
            self._pipelines.pop(Task.EVALUATE, None)
        pipeline, replicas = self._pipeline(Task.EVALUATE), self._replicas_of(Task.EVALUATE)
        if pipeline is None and replicas.count == 1:
            if self.test_function is None or force:
                super().make_test_function(force=True)
                self.test_function = with_reports(self.test_function, self)
            return self.test_function
        if self.test_function is None or force:
            execution = evaluation_execution(self, pipeline, replicas, self._metric_reduction)

            def test(iterator: Iterator[Any]) -> Any:
                feed = next_of_all(iterator, self.steps_per_execution, replicas.runs)
                return self._store_logs(
                    self._run(execution, feed, pipeline, replicas.count), replicas.count
                )

            self.test_function = test
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """Return the function that Keras calls once per execution of ``predict``.

        It takes a list of microbatches.
        """
        pipeline, replicas = self._pipeline(Task.PREDICT), self._replicas_of(Task.PREDICT)
        if pipeline is None and replicas.count == 1:
            if self.predict_function is None or force:
                super().make_predict_function(force=True)
                self.predict_function = with_reports(self.predict_function, self)
            return self.predict_function
        if self.predict_function is None or force:
            execution = prediction_execution(self, pipeline, replicas)
            self.predict_function = lambda data: self._run(
                execution, of_all(list(data), replicas.runs), pipeline, replicas.count
            )
        return self.predict_function

    @property
    def execution(self) -> Any:
        """The training program as a ``tf.function`` of ``feed``, the stacked microbatches.

        It returns the losses and gradient norms, one per update, the log of the stages that ran for
        the last update, and the metrics. In one of several processes it has one update and returns
        the results of ``gradients_of_one_update``. An addition to Graphcore's API.
        """
        accumulation, pipeline = self._accumulation_of_training(), self._pipeline(Task.TRAIN)
        if self._execution is None:
            replicas = self._replicas_of(Task.TRAIN)
            if self.workers and replicas.count > 1:
                raise refuse(
                    "replication over processes",
                    f"{replicas.count} replicas in each of several processes",
                )
            self._execution = training_execution(
                self,
                accumulation,
                pipeline,
                replicas,
                self._metric_reduction,
                is_one_of_several=bool(self.workers),
            )
        return self._execution

    def feed_signature(self, element_spec: Any) -> Any:
        """Return the signature of ``execution``'s argument for elements like ``element_spec``."""
        replicas = self._replicas_of(Task.TRAIN)
        count = self._accumulation_of_training().microbatches * replicas.runs

        def whole(spec: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec(
                (count, spec.shape[0] * replicas.together, *spec.shape[1:]), spec.dtype
            )

        return tf.nest.map_structure(whole, element_spec)

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """The numbers of the pipeline stages in use; empty if the model is no pipeline."""
        return tuple(_stages_of(self._graph(Task.TRAIN)))

    @property
    def pipeline(self) -> Pipeline | None:
        """The training stages and their options; None if the model is no pipeline.

        Raises the errors that training raises.
        """
        return self._pipeline(Task.TRAIN)

    def functional_of(self, task: Task) -> keras.Model | None:
        """Return the functional model whose layers this model calls for ``task``.

        None if it cannot be determined.
        """
        raise NotImplementedError

    def _graph(self, task: Task) -> Graph:
        """Return the graph with the stage of each call, checked."""
        functional = self.functional_of(task)
        if functional is None:
            return Graph((), (), ())
        graph = staged_graph(functional, self.assigned_stages, is_training=task is Task.TRAIN)
        check_stages(graph)
        return graph

    def _pipeline(self, task: Task) -> Pipeline | None:
        """Return the pipeline, after the checks that need its stages.

        Source: Graphcore, Keras models and fit.
        """
        graph = self._graph(task)
        stages = _stages_of(graph)
        if not stages:
            return None
        if task not in self._pipelines:
            options = self._pipelining or PipelineOptions()
            is_training = task is Task.TRAIN
            count = (
                self._accumulation_of_training().steps if is_training else self.steps_per_execution
            )
            options.check(stages, trains=is_training, microbatches=count)
            recompute = config.current().allow_recompute
            pipeline = Pipeline(
                self, self.functional_of(task), graph, options, recompute, self._levels
            )
            check_shared_weights(graph, pipeline.devices)
            self._pipelines[task] = pipeline
        return self._pipelines[task]

    def replica_count(self, task: Task) -> int:
        """Return the number of replicas for ``task``: the device's IPUs over one replica's.

        Raises ValueError if they do not divide. Source: Graphcore, replication.
        """
        devices = config.devices()
        ipus = devices[device_number(getattr(self._made_in, "ipu_device", FIRST_DEVICE), devices)]
        if ipus == 1:
            return 1
        stages, mapping = (
            _stages_of(self._graph(task)),
            (self._pipelining or PipelineOptions()).device_mapping,
        )
        return replicas_on(ipus, 1 + max(mapping if stages and mapping else stages or [0]))

    def equalize_replicas(self) -> None:
        """Give every replica the values of the model's variables.

        An IPU does so whenever one program follows another.
        """
        if self._replicas is not None:
            self._replicas.equalize()

    @property
    def accumulation_steps(self) -> int:
        """The number of microbatches of one optimiser update of each replica."""
        return self._accumulation_of_training().steps

    def _replicas_of(self, task: Task) -> Replicas:
        """Return the replicas for ``task``, new ones if their number or metrics changed."""
        count = self.replica_count(task)
        together = self._replicas_with_common_statistics(count)
        replicas = self._replicas
        if (
            replicas is None
            or (replicas.count, replicas.together) != (count, together)
            or not replicas.has_all_metrics
        ):
            replicas = Replicas(self, count, together)
            # Keras must not track its variables as the model's.
            object.__setattr__(self, "_replicas", replicas)
            self._execution = None
        return replicas

    def _replicas_with_common_statistics(self, count: int) -> int:
        """Return the number of replicas that share batch normalisation statistics.

        Raises ValueError for groups that do not divide the replicas. Source: Graphcore,
        replication.
        """
        size = config.current().norms.experimental.distributed_batch_norm_replica_group_size
        if size == 1 or not any(
            isinstance(layer, keras.layers.BatchNormalization) for layer in layers_in(self)
        ):
            return 1
        if count % size:
            raise ValueError(
                f"norms.experimental.distributed_batch_norm_replica_group_size={size} does not "
                f"divide the {count} replicas of the model: give a number that does, or configure "
                "more IPUs"
            )
        return int(size)

    def _store_logs(self, logs: Any, replicas: int) -> Any:
        """Store the metrics of several replicas for ``get_metrics_result``; return them."""
        if replicas > 1:
            self._logs_of_replicas = logs
        return logs

    def _accumulation_of_training(self) -> Accumulation:
        """Return the gradient accumulation of training, after checking it."""
        is_pipeline = bool(self.pipeline_stages)
        if is_pipeline and self._accumulation is not None:
            raise ValueError(
                "set_gradient_accumulation_options is for models without a pipeline, and this "
                "one has one. Use "
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
                f"steps_per_execution={self.steps_per_execution} must be a multiple of the "
                f"{steps} gradient accumulation steps"
            )
        microbatches = steps if self.workers else self.steps_per_execution
        return Accumulation(microbatches, steps, (options or PipelineOptions()).reduction)

    def _run(self, execution: Any, feed: Any, pipeline: Pipeline | None, replicas: int) -> Any:
        """Run a program, with reports if they are requested."""
        places = pipeline.ipu_of_layer if pipeline else {}
        return run_reported(
            execution, feed, input_feed=["feed"], ipu_of_layer=places, model=self, replicas=replicas
        )

    def _forget_programs(self) -> None:
        """Discard all programs."""
        self.train_function = self.test_function = self.predict_function = self._execution = None
        # Keras's tracking of attributes is closed once a model is built.
        object.__setattr__(self, "_pipelines", {})
        object.__setattr__(self, "_replicas", None)


def _stages_of(graph: Graph) -> list[int]:
    """Return the stage numbers in ``graph``, sorted."""
    return sorted({call.stage for call in graph.calls if call.stage is not None})
