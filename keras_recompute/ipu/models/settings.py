"""Settings of a model's accumulation, pipeline, replicas and queues.

Source: Graphcore, Keras models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from ..configuration.missing_names import AbsentNameError, why_missing
from ..pipeline.pipelining_options import PipelineOptions, positive_or_none
from ..pipeline.replica_metrics import ReplicatedMetricReductionMethod, reduction_of_metrics

# Keras makes the bases of functional models functional too, so this must not be a model itself.
_Model: Any = keras.Model if TYPE_CHECKING else object


class Settings(_Model):
    """The setters that a model gains.

    Impossible values raise here, other errors when a program is compiled.
    """

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
        """Set how the pipeline trains; raise ValueError for impossible values.

        Source: Graphcore, Keras models.
        """
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
        """Set gradient accumulation of a model that is no pipeline.

        Training a pipeline with it raises ValueError.
        """
        self._accumulation = PipelineOptions.of_accumulation(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            **gradient_accumulation_optimizer_kwargs,
        )
        self._forget_programs()

    def set_infeed_queue_options(self, prefetch_depth: int | None = None) -> None:
        """Accept the number of microbatches prefetched for the device.

        It has no effect: the data of a whole execution is prefetched.
        """
        positive_or_none("prefetch_depth", prefetch_depth)

    def set_outfeed_queue_options(self, buffer_depth: int | None = None) -> None:
        """Accept the number of results buffered behind the device.

        It has no effect: the results of a whole execution are buffered.
        """
        positive_or_none("buffer_depth", buffer_depth)

    def set_replication_options(self, replicated_metric_reduction_method: Any = "NONE") -> None:
        """Set how metrics of replicas are reduced.

        NONE takes the last replica's values, LIST an array of all values, SUM and MEAN one value.
        Raises ValueError for anything else. Source: Graphcore, replication.
        """
        self._metric_reduction = reduction_of_metrics(replicated_metric_reduction_method)
        self._forget_programs()

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Accept either value: callbacks run after each execution.

        Their arguments do not depend on it, because an execution's results arrive together.
        """

    def export_for_ipu_serving(self, *_: Any, **__: Any) -> None:
        """Raise AbsentNameError."""
        raise AbsentNameError(why_missing("keras.Model.export_for_ipu_serving"))

    def _forget_programs(self) -> None:
        """Discard all programs, because their settings changed."""
        raise NotImplementedError
