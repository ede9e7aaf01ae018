"""Captures: tensors from outside of the graph under construction, as tensors of it."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from ...seams.tensorflow.tensors import is_eager
from .dataflow import map_present


def in_default_graph(value: tf.Tensor) -> tf.Tensor:
    """Return ``value`` as a tensor of the graph under construction, captured if it is outside."""
    graph = tf.compat.v1.get_default_graph()
    if is_eager(value) or value.graph is not graph:
        return graph.capture(value)
    return value


def capture_all(values: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Return ``values`` as tensors of the graph under construction."""
    return list(map(in_default_graph, values))


def capture_known(values: Iterable[tf.Tensor | None]) -> list[tf.Tensor | None]:
    """Return ``values`` as ``capture_all`` does, and None where one is None."""
    return map_present(in_default_graph, values)
