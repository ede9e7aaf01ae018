"""The rows of sparse gradients of a loop over sections, found by a loop of their own.

They wait for no gradient. So if the loop is inside a section of another one, that one can compute
them too, in front of its fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..graph.target import Target
from ..graph.target_ops import with_body_passes
from ..partition.partition import Partition
from .scan_gradients import GradientStores
from .slice_store import empty_all, put_all, whole_all

# Returns what section s reads at some of the ports of its program of rows, by their numbers.
ReadByRows = Callable[[tf.Tensor, Sequence[int]], Mapping[int, tf.Tensor]]


def rows_of_sections(
    part: Partition, stores: GradientStores, count: int, read_by_rows: ReadByRows, target: Target
) -> list[tf.Tensor]:
    """Write the loop over ``count`` sections; return the rows of all, per sparse port."""
    if part.rows is None or not stores.sparse:
        return []
    program, read = part.rows.with_read_ports()
    numbers = list(part.joint.rows)

    def body(s: tf.Tensor, stacks: Any) -> tuple[Any, ...]:
        known = read_by_rows(s, read)
        rows = dict(zip(numbers, program.write([known[n] for n in read])))
        return s + 1, put_all(stores.sparse_rows, stacks, s, [rows[p] for p in stores.sparse])

    _, stacks = tf.while_loop(
        lambda s, *_: s < count,
        with_body_passes(body, target),
        (tf.constant(0), empty_all(stores.sparse_rows, target)),
        maximum_iterations=count,
        parallel_iterations=1,
    )
    return whole_all(stores.sparse_rows, stacks)
