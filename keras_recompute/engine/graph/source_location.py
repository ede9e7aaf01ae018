"""The source location of a value in a traced function: the line of the user's code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ...op_names import original_of
from ...user_code import Source, source_among


def source_of(operation: tf.Operation) -> Source | None:
    """Return the innermost line of the user's code that made ``operation``, if there is one.

    Lines of TensorFlow, Keras and this package are skipped.
    """
    original = original_of(operation)
    if original is not operation:
        return source_of(original)
    return source_in(operation.traceback or ())


def source_in(traceback: Iterable[Any]) -> Source | None:
    """Return the innermost line of the user's code in a traceback, outermost frame first."""
    innermost_first = reversed(list(traceback))
    return source_among((frame.filename, frame.lineno, frame.name) for frame in innermost_first)


def static_shape(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    """Return the shape of ``tensor`` as far as it is known before it runs."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
