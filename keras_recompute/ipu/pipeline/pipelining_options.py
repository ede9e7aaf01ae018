"""Options for pipelining and gradient accumulation, and their checks.

Impossible values are refused when they are set. Checks that depend on the stages run when the
pipeline is built. Source: Graphcore, Keras models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..configuration.refusals import refuse
from .accumulation import Reduction
from .pipelining_ops import PipelineSchedule, RecomputationMode
from .schedule import microbatch_multiple

GradientAccumulationReductionMethod = Reduction

_Mode, _Schedule = RecomputationMode, PipelineSchedule
# The modes that a schedule can be combined with; Auto means the first of them.
MODES = {
    _Schedule.Grouped: (
        _Mode.RecomputeThenBackpropagate,
        _Mode.RecomputeAndBackpropagateInterleaved,
    ),
    _Schedule.Interleaved: (_Mode.RecomputeThenBackpropagate,),
    _Schedule.Sequential: (_Mode.RecomputeAndBackpropagateInterleaved,),
}
_SET_BY_KERAS = (
    "computational_stages",
    "repeat_count",
    "inputs",
    "infeed_queue",
    "outfeed_queue",
    "optimizer_function",
)
_OWN_ARGUMENT = {
    "gradient_accumulation_count": "gradient_accumulation_steps_per_replica",
    "device_mapping": "device_mapping",
    "accumulate_outfeed": "accumulate_outfeed",
}
_REFUSED = ("offload_weight_update_variables", "offload_activations", "gradient_accumulation_dtype")
_WITHOUT_EFFECT = (
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
)
_ENUMS = ("pipeline_schedule", "recomputation_mode")


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of ``set_pipelining_options`` or ``set_gradient_accumulation_options``.

    ``schedule`` and ``mode`` may hold anything until ``check`` has been called.
    """

    accumulation_steps: int | None = None
    device_mapping: tuple[int, ...] | None = None
    accumulate_outfeed: bool = False
    reduction: Reduction = Reduction.SUM
    schedule: PipelineSchedule = PipelineSchedule.Grouped
    mode: RecomputationMode = RecomputationMode.Auto

    @classmethod
    def of_pipeline(
        cls,
        steps: Any,
        device_mapping: Any,
        accumulate_outfeed: Any,
        reduction: Any,
        /,
        **pipelining_kwargs: Any,
    ) -> PipelineOptions:
        """Return the options of a pipeline.

        Raises ValueError for impossible values, TypeError for an unknown name.
        """
        for name, value in pipelining_kwargs.items():
            if name in _SET_BY_KERAS:
                raise ValueError(
                    f"{name!r} is set by Keras: leave it out of set_pipelining_options"
                )
            if name in _OWN_ARGUMENT:
                raise ValueError(f"{name!r} has an argument of its own: use {_OWN_ARGUMENT[name]}=")
            if name in _REFUSED and value:
                raise refuse(name, value)
            if name not in (*_ENUMS, *_REFUSED, *_WITHOUT_EFFECT):
                raise TypeError(f"set_pipelining_options does not know {name!r}")
        if device_mapping is not None and not (
            isinstance(device_mapping, list) and all(type(d) is int for d in device_mapping)
        ):
            raise ValueError(
                f"device_mapping must be a list of int, one per stage, not {device_mapping!r}"
            )
        return cls(
            positive_or_none("gradient_accumulation_steps_per_replica", steps),
            None if device_mapping is None else tuple(device_mapping),
            bool(accumulate_outfeed),
            reduction_method(reduction),
            pipelining_kwargs.get("pipeline_schedule", PipelineSchedule.Grouped),
            pipelining_kwargs.get("recomputation_mode", RecomputationMode.Auto),
        )

    @classmethod
    def of_accumulation(cls, steps: Any, reduction: Any, /, **kwargs: Any) -> PipelineOptions:
        """Return the options of a model that is no pipeline; raises as ``of_pipeline`` does."""
        for name, value in kwargs.items():
            if name not in _REFUSED:
                raise TypeError(f"set_gradient_accumulation_options does not know {name!r}")
            if value:
                raise refuse(name, value)
        return cls(
            positive_or_none("gradient_accumulation_steps_per_replica", steps),
            reduction=reduction_method(reduction),
        )

    @property
    def effective_mode(self) -> RecomputationMode:
        """The mode, with Auto resolved for the schedule."""
        return MODES[self.schedule][0] if self.mode is RecomputationMode.Auto else self.mode

    def check(self, stages: Sequence[int], *, trains: bool, microbatches: int) -> None:
        """Check a pipeline of ``stages`` with runs of ``microbatches``.

        Raises what Graphcore's API raises when such a pipeline is built.
        """
        if list(stages) != list(range(len(stages))):
            raise RuntimeError(
                f"the pipeline stages {list(stages)} have a gap: number them from 0 on without one"
            )
        if len(stages) < 2:
            raise ValueError(
                "a pipeline needs at least two stages, but all calls of layers are in stage 0"
            )
        if not isinstance(self.schedule, PipelineSchedule):
            raise TypeError(f"pipeline_schedule must be a PipelineSchedule, not {self.schedule!r}")
        if not isinstance(self.mode, RecomputationMode):
            raise TypeError(f"recomputation_mode must be a RecomputationMode, not {self.mode!r}")
        mapping = self.device_mapping
        if mapping is not None and len(mapping) != len(stages):
            raise ValueError(
                f"device_mapping has {len(mapping)} entries for {len(stages)} stages: give one "
                "for each"
            )
        if (
            trains
            and self.schedule is PipelineSchedule.Interleaved
            and mapping
            and len(set(mapping)) < len(mapping)
        ):
            raise NotImplementedError(
                f"the Interleaved schedule cannot train with device_mapping={list(mapping)}, "
                "which uses a device twice: give every stage a device of its own"
            )
        if trains and self.effective_mode not in MODES[self.schedule]:
            can = " or ".join(mode.name for mode in MODES[self.schedule])
            # A script may catch the error that Graphcore's API raises, which is TensorFlow's.
            raise tf.errors.UnimplementedError(
                None,
                None,
                f"the {self.schedule.name} schedule cannot be combined with {self.mode.name}: use "
                f"{can}",
            )
        multiple = microbatch_multiple(self.schedule, len(stages), trains=trains)
        if microbatches % multiple:
            counted = "gradient accumulation steps" if trains else "steps per execution"
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"{microbatches} microbatches do not fill a pipeline of {len(stages)} stages: the "
                f"{self.schedule.name} schedule needs a multiple of {multiple}. Change the "
                f"{counted}",
            )


def positive_or_none(name: str, value: Any) -> int | None:
    """Return ``value``; raise ValueError unless it is a positive int or None."""
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return value


def reduction_method(value: Any) -> Reduction:
    """Return the reduction that ``value`` names; raise ValueError if there is none.

    ``value`` is a member, or its name in upper or lower case.
    """
    methods = {method.value: method for method in Reduction}
    method = value if isinstance(value, Reduction) else methods.get(str(value).lower())
    if method is None:
        raise ValueError(
            "gradient_accumulation_reduction_method must be SUM, MEAN or RUNNING_MEAN, not "
            f"{value!r}"
        )
    return method
