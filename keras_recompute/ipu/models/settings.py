"""What Graphcore's methods set on a model: how it accumulates, pipelines, replicates and is fed (Graphcore: Keras models)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from ..configuration.missing_names import AbsentNameError, why_missing
from ..pipeline.pipelining_options import PipelineOptions, positive_or_none
from ..pipeline.replica_metrics import ReplicatedMetricReductionMethod, reduction_of_metrics

# Keras turns the bases of functional models into functional ones, so this must not be a model itself.
_Model: Any = keras.Model if TYPE_CHECKING else object


class Settings(_Model):
    """The setters that a model gains. What can never work is refused here, the rest when a program is made."""

    _pipelining: PipelineOptions | None = None
    _accumulation: PipelineOptions | None = None
    _metric_reduction = ReplicatedMetricReductionMethod.NONE

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
        """Set how metrics of replicas are put together (Graphcore: replication).

        NONE: those of the last replica stand for all. LIST: an array of the values of all. SUM, MEAN. Raises ValueError for
        anything else.
        """
        self._metric_reduction = reduction_of_metrics(replicated_metric_reduction_method)
        self._forget_programs()

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Accept either way: callbacks run after each execution, with the same arguments, as its results arrive together."""

    def export_for_ipu_serving(self, *_: Any, **__: Any) -> None:
        """Raise AbsentNameError."""
        raise AbsentNameError(why_missing("keras.Model.export_for_ipu_serving"))

    def _forget_programs(self) -> None:
        """Have all programs made anew: what they were made by has changed."""
        raise NotImplementedError
