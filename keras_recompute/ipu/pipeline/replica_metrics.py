"""The reduction of the metrics of replicas to one result for Keras.

Source: Graphcore, set_replication_options.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class ReplicatedMetricReductionMethod(enum.Enum):
    """How metrics of replicas are reduced.

    NONE takes the last replica's, LIST the values of all replicas in their order, and SUM and MEAN
    one value.
    """

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


def reduction_of_metrics(value: Any) -> ReplicatedMetricReductionMethod:
    """Return the method that ``value`` names; raise ValueError if there is none.

    ``value`` is a member, or its name in upper or lower case.
    """
    if isinstance(value, ReplicatedMetricReductionMethod):
        return value
    names = [method.name for method in ReplicatedMetricReductionMethod]
    if not isinstance(value, str) or value.upper() not in names:
        raise ValueError(
            f"replicated_metric_reduction_method must be one of {', '.join(names)}, not {value!r}"
        )
    return ReplicatedMetricReductionMethod[value.upper()]


def reduce_metrics(results: Sequence[Any], method: ReplicatedMetricReductionMethod) -> Any:
    """Return the nests ``results``, one per replica, reduced to one.

    Values have shape ``()``, or ``(replicas,)`` with LIST.
    """
    if len(results) == 1 or method is ReplicatedMetricReductionMethod.NONE:
        return results[-1]
    put_together = {
        ReplicatedMetricReductionMethod.LIST: tf.stack,
        ReplicatedMetricReductionMethod.SUM: tf.add_n,
        ReplicatedMetricReductionMethod.MEAN: lambda values: tf.add_n(values) / len(values),
    }[method]
    return tf.nest.map_structure(
        lambda *values: put_together(list(map(tf.convert_to_tensor, values))), *results
    )
