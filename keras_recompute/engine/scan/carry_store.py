"""The store of a loop's carried states: one at each boundary between sections, as checkpoints.

``count`` sections have ``count - 1`` boundaries. The state that enters the first section and the
one that leaves the last are not stored: the caller has them as an argument and a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..graph.graph_constants import memoized_op
from ..graph.target import Target
from .slice_store import Dimension, SliceStore


@dataclass(frozen=True)
class CarryStore:
    """A store of one state of ``shape`` at each boundary between ``count`` sections."""

    count: int
    shape: tuple[Dimension, ...]
    dtype: tf.DType

    @property
    def _slices(self) -> SliceStore:
        return SliceStore(max(self.count - 1, 1), self.shape, self.dtype)

    def empty(self, target: Target) -> Any:
        """Return a store for ``put``, as ``SliceStore.empty`` does."""
        return self._slices.empty(target)

    def put(self, store: Any, s: tf.Tensor, state: tf.Tensor) -> Any:
        """Return ``store`` with the state that enters section ``s``.

        Sections must come in order.
        """
        # What enters the first section lies where the first boundary belongs, and is overwritten by
        # it.
        return self._slices.put(store, memoized_op(_before, s), state)

    def carry_in(self, store: Any, s: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        """Return the state that enters section ``s``; for the first section, ``first``."""
        return tf.where(
            memoized_op(tf.greater, s, 0), self._slices.get(store, memoized_op(_before, s)), first
        )

    def carry_out(self, store: Any, s: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
        """Return the state that leaves section ``s``; for the last section, ``last``."""
        boundary = memoized_op(tf.minimum, s, self._slices.count - 1)
        return tf.where(
            memoized_op(tf.less, s, self.count - 1), self._slices.get(store, boundary), last
        )

    def whole(self, store: Any) -> tf.Tensor:
        """Return the states at all boundaries as one tensor, which the other methods accept."""
        return self._slices.whole(store)


def _before(s: tf.Tensor) -> tf.Tensor:
    return tf.maximum(s - 1, 0)
