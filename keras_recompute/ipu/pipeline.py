"""Keras models with Graphcore's methods: pipelined training, gradient accumulation, several steps per execution."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from ..models.accumulate import Accumulation, run_accumulated
from ..models.execute import Plan
from ..models.graph import read_graph
from ..models.model import Model
from . import config
from .pipelining_ops import PipelineSchedule, RecomputationMode
from .stages import stage_of
from .unsupported import refuse


class GradientAccumulationReductionMethod(enum.Enum):
    """How the gradients of the microbatches are put together (contract section 4)."""

    SUM = "sum"
    MEAN = "mean"
    RUNNING_MEAN = "running_mean"


@dataclass(frozen=True)
class PipelineOptions:
    """What ``set_pipelining_options`` was given, checked as far as can be before the pipeline is built."""

    accumulation_steps: int | None = None
    device_mapping: list[int] | None = None
    reduction: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    mode: RecomputationMode = RecomputationMode.Auto


@dataclass
class TrainingRecord:
    """What training did, one entry per optimiser update. An addition to Graphcore's API.

    ``losses`` are means over the update's microbatches; ``gradient_norms`` are norms of the accumulated gradient.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)


_SET_BY_KERAS = ("computational_stages", "repeat_count", "inputs", "infeed_queue", "outfeed_queue", "optimizer_function")
_OWN_ARGUMENT = {
    "gradient_accumulation_count": "gradient_accumulation_steps_per_replica",
    "device_mapping": "device_mapping",
    "accumulate_outfeed": "accumulate_outfeed",
}
_REFUSED = ("offload_weight_update_variables", "offload_activations", "gradient_accumulation_dtype")
_WITHOUT_EFFECT = ("forward_propagation_stages_poplar_options", "backward_propagation_stages_poplar_options")


@keras.saving.register_keras_serializable(package="keras_recompute")
class PipelinedModel(Model):
    """A functional model made in an IPUStrategy's scope.

    With calls in ``PipelineStage`` contexts it is a pipeline: the stages run one after the other on the one device, as
    the Sequential schedule does, and with ``allow_recompute`` every stage is recomputed from its checkpoints, of the last
    stage only what leads to its last checkpoint (contract section 6).
    """

    _pipelining: PipelineOptions | None = None
    _accumulation: PipelineOptions | None = None
    steps_per_execution: int
    train_function: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.training_record = TrainingRecord()
        # A context entered around each run of the training program, when its data is there: for measuring.
        self.around_execution: Callable[[], AbstractContextManager[Any]] = nullcontext
        super().__init__(*args, **kwargs)

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Set how the pipeline trains (contract section 4). Raises ValueError for values that can never work."""
        del accumulate_outfeed  # outputs are accumulated in the program's metrics in any case
        for name, value in pipelining_kwargs.items():
            if name in _SET_BY_KERAS:
                raise ValueError(f"{name!r} is set by Keras and cannot be given to set_pipelining_options")
            if name in _OWN_ARGUMENT:
                raise ValueError(f"{name!r} has an argument of its own: use {_OWN_ARGUMENT[name]}=")
            if name in _REFUSED and value:
                raise refuse(name, value)
            if name not in ("pipeline_schedule", "recomputation_mode", *_REFUSED, *_WITHOUT_EFFECT):
                raise TypeError(f"set_pipelining_options does not know {name!r}")
        if device_mapping is not None and not (
            isinstance(device_mapping, list) and all(type(d) is int for d in device_mapping)
        ):
            raise ValueError(f"device_mapping must be a list of int, one per stage, not {device_mapping!r}")
        self._pipelining = PipelineOptions(
            accumulation_steps=_positive_or_none(
                "gradient_accumulation_steps_per_replica", gradient_accumulation_steps_per_replica
            ),
            device_mapping=device_mapping,
            reduction=_reduction(gradient_accumulation_reduction_method),
            schedule=pipelining_kwargs.get("pipeline_schedule", PipelineSchedule.Grouped),
            mode=pipelining_kwargs.get("recomputation_mode", RecomputationMode.Auto),
        )
        self.train_function = self._execution = None

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
    ) -> None:
        """Set gradient accumulation for a model that is not a pipeline (contract section 4)."""
        steps = _positive_or_none("gradient_accumulation_steps_per_replica", gradient_accumulation_steps_per_replica)
        self._accumulation = PipelineOptions(steps, reduction=_reduction(gradient_accumulation_reduction_method))
        self.train_function = self._execution = None

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """The numbers of the pipeline stages in use; empty if the model is not a pipeline."""
        return tuple(sorted({call.stage for call in self.plan.graph.calls if call.stage is not None}))

    def _make_plan(self) -> Plan:
        graph = read_graph(self, stage_of)
        staged = [call for call in graph.calls if call.stage is not None]
        for call in graph.calls:
            if staged and call.stage is None:
                raise ValueError(
                    f"the call of layer {call.operation.name!r} is in no PipelineStage, but others are: "
                    f"in a pipeline every call but the inputs must be in one"
                )
        made_in = {key: call.stage or 0 for call in graph.calls for key in call.outputs}
        for call in graph.calls:
            if any(made_in.get(key, 0) > (call.stage or 0) for key in call.inputs):
                raise ValueError(f"layer {call.operation.name!r} in stage {call.stage} reads an output of a later stage")
        if not config.current().allow_recompute:
            return Plan.without_recomputation(graph)
        return Plan.of(graph, self._levels)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as Keras does. The training program is always one compiled program; eager running is refused."""
        if kwargs.get("run_eagerly"):
            raise RuntimeError("run_eagerly=True is not possible: an execution is one compiled program")
        super().compile(*args, **{**kwargs, "jit_compile": True})
        self._execution = None

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Train. One step is one microbatch; callbacks run once per execution (contract section 5).

        Raises ValueError for data whose batches are not all of one known size: datasets with an open batch dimension,
        arrays with a partial last batch, generators.
        """
        _require_equal_batches(x, kwargs.get("batch_size"))
        steps = kwargs.get("steps_per_epoch") or _known_steps(x, kwargs.get("batch_size"))
        if steps is not None and self.steps_per_execution > steps:
            warnings.warn(
                f"steps_per_execution={self.steps_per_execution} is more than the {steps} steps of an epoch and is cut to them",
                stacklevel=2,
            )
            self.steps_per_execution = steps
            self.train_function = self._execution = None
        if steps is not None and steps % self.steps_per_execution:
            raise ValueError(
                f"{steps} steps per epoch cannot be divided into executions of steps_per_execution={self.steps_per_execution}"
            )
        return super().fit(x, y, **kwargs)

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return the function that Keras calls once per execution: it takes microbatches from an iterator."""
        if self.train_function is not None and not force:
            return self.train_function
        execution = self.execution

        def train(iterator: Iterator[Any]) -> Any:
            feed = _next_microbatches(iterator, self.steps_per_execution)
            with self.around_execution():
                losses, norms, logs = execution(feed)
            self.training_record.losses.extend(losses.numpy().tolist())
            self.training_record.gradient_norms.extend(norms.numpy().tolist())
            return logs

        self.train_function = train
        return train

    @property
    def execution(self) -> Any:
        """The training program as a ``tf.function`` of ``feed``: microbatches stacked along a new first axis.

        It returns the losses and gradient norms, one per update, and the metrics. An addition to Graphcore's API.
        """
        accumulation = self._check_training()
        if self._execution is None:
            self.optimizer.build(self.trainable_variables)

            def execution(feed: Any) -> Any:
                return *run_accumulated(self, feed, accumulation), self.get_metrics_result()

            self._execution = tf.function(execution, jit_compile=True, autograph=False)
        return self._execution

    def feed_signature(self, element_spec: Any) -> Any:
        """Return the signature of ``execution``'s argument for a dataset whose elements are like ``element_spec``."""
        return tf.nest.map_structure(
            lambda spec: tf.TensorSpec((self.steps_per_execution, *spec.shape), spec.dtype), element_spec
        )

    def _check_training(self) -> Accumulation:
        """Check what can only be checked when the pipeline is built (contract sections 4 and 5)."""
        stages = self.pipeline_stages
        options = self._pipelining if stages else self._accumulation
        if stages:
            options = options or PipelineOptions()
            _check_pipeline(options, stages)
            if options.accumulation_steps is None:
                raise ValueError(
                    "training a pipelined model needs gradient accumulation: call "
                    "set_pipelining_options(gradient_accumulation_steps_per_replica=N)"
                )
        steps = (options.accumulation_steps if options else None) or 1
        if self.steps_per_execution % steps:
            raise RuntimeError(
                f"steps_per_execution={self.steps_per_execution} must be a multiple of the gradient accumulation steps, {steps}"
            )
        is_mean = options is not None and options.reduction is GradientAccumulationReductionMethod.MEAN
        return Accumulation(microbatches=self.steps_per_execution, steps=steps, mean=is_mean)


def _check_pipeline(options: PipelineOptions, stages: tuple[int, ...]) -> None:
    if stages != tuple(range(len(stages))):
        raise RuntimeError(f"the pipeline stages {list(stages)} have a gap: number them from 0 without one")
    if len(stages) < 2:
        raise ValueError("a pipeline needs at least two stages, but all calls are in stage 0")
    if not isinstance(options.schedule, PipelineSchedule):
        raise TypeError(f"pipeline_schedule must be a PipelineSchedule, not {options.schedule!r}")
    if not isinstance(options.mode, RecomputationMode):
        raise TypeError(f"recomputation_mode must be a RecomputationMode, not {options.mode!r}")
    if options.device_mapping is not None and len(options.device_mapping) != len(stages):
        raise ValueError(f"device_mapping has {len(options.device_mapping)} entries for {len(stages)} stages")
    if options.device_mapping is not None and set(options.device_mapping) != {0}:
        raise refuse("several devices", options.device_mapping)
    if options.schedule is not PipelineSchedule.Sequential:
        raise refuse(f"pipeline_schedule {options.schedule.name}", options.schedule)
    if options.mode is RecomputationMode.RecomputeThenBackpropagate:
        raise tf.errors.UnimplementedError(
            None, None, "the Sequential schedule cannot be combined with RecomputeThenBackpropagate: "
            "use RecomputeAndBackpropagateInterleaved"
        )  # fmt: skip


def _positive_or_none(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return value


def _reduction(value: Any) -> GradientAccumulationReductionMethod:
    methods = {method.value: method for method in GradientAccumulationReductionMethod}
    method = value if isinstance(value, GradientAccumulationReductionMethod) else methods.get(str(value).lower())
    if method is None:
        raise ValueError(f"gradient_accumulation_reduction_method must be SUM, MEAN or RUNNING_MEAN, not {value!r}")
    if method is GradientAccumulationReductionMethod.RUNNING_MEAN:
        raise refuse("gradient_accumulation_reduction_method RUNNING_MEAN", value)
    return method


def _require_equal_batches(x: Any, batch_size: int | None) -> None:
    if isinstance(x, tf.data.Dataset):
        if any(None in (spec.shape.as_list() if spec.shape.rank else [None]) for spec in tf.nest.flatten(x.element_spec)):
            raise ValueError("the dataset has batches of unknown size: batch it with drop_remainder=True")
        return
    first: Any = next(iter(tf.nest.flatten(x)), None)
    if not hasattr(first, "shape"):
        raise ValueError(
            f"data of type {type(x).__name__} has batches of unknown size, as a generator has: use a tf.data.Dataset"
        )
    if first.shape[0] % (batch_size or 32):
        raise ValueError(
            f"{first.shape[0]} samples cannot be divided into batches of batch_size={batch_size or 32}: leave some out"
        )


def _known_steps(x: Any, batch_size: int | None) -> int | None:
    if isinstance(x, tf.data.Dataset):
        cardinality = int(x.cardinality())
        return cardinality if cardinality >= 0 else None
    first = next(iter(tf.nest.flatten(x)), None)
    return None if first is None or not hasattr(first, "shape") else -(-first.shape[0] // (batch_size or 32))


def _next_microbatches(iterator: Iterator[Any], count: int) -> Any:
    """Return ``count`` microbatches stacked along a new first axis, as the program reads them."""
    microbatches = [next(iterator) for _ in range(count)]
    if any(None in t.shape.as_list() for t in tf.nest.flatten(microbatches[0])):
        raise ValueError("microbatches need a fixed shape: batch the dataset with drop_remainder=True")

    def stacked(*parts: tf.Tensor) -> tf.Tensor:
        shapes = {tuple(t.shape) for t in parts}
        if len(shapes) > 1:
            raise ValueError(f"microbatches need one fixed shape, but have {sorted(shapes)}: use drop_remainder=True")
        whole = tf.stack(parts)
        return tf.cast(whole, tf.float32) if whole.dtype == tf.float64 else whole

    return tf.nest.map_structure(stacked, *microbatches)
