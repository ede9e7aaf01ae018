"""The gradients that a backward loop collects, section by section, for each port of its sections.

The gradient of a scanned input is put together from slices. Gradients of a constant are added up.
If they are sparse, the values of all sections are joined instead; the rows that they belong to come
from a loop of their own (see ``scan_rows``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import tensorflow as tf

from ..graph.dataflow import pick
from ..graph.sparse_gradients import Gradient, densify, values_of
from ..graph.sparse_gradients import slices as indexed_slices
from ..graph.target import Target
from ..graph.target_ops import zeros_like
from ..partition.partition import Partition
from .scan_roles import Constant, Role, Scanned
from .slice_store import SliceStore, empty_all, pad_into, put_all, whole_all

# Makes the description of a store for slices like a tensor, along an axis or stacked.
StoreLike = Callable[[tf.Tensor, Optional[int]], SliceStore]
Stores = tuple[list[Any], list[Any], list[tf.Tensor]]


def sparse_ports(part: Partition, roles: Sequence[Role]) -> list[int]:
    """Return the ports whose gradient by the whole loop is sparse: constants of the loop."""
    return [p for p in part.joint.rows if p >= len(roles) or isinstance(roles[p], Constant)]


def slice_values(part: Partition, port: int) -> tf.Tensor:
    """Return the values of the sparse gradient of ``port``, in the graph of the section."""
    return part.joint.gradient_tensors[part.joint.produced.index(port)]


@dataclass(frozen=True)
class GradientStores:
    """Which ports have which kind of gradient, and the descriptions of their stores.

    ``sparse_values`` and ``sparse_rows`` have a store for each port in ``sparse``.
    """

    scanned: dict[int, Scanned]
    constants: list[int]
    sparse: list[int]
    slices: list[SliceStore]
    sparse_values: list[SliceStore]
    sparse_rows: list[SliceStore]

    @classmethod
    def of(cls, part: Partition, roles: Sequence[Role], store_like: StoreLike) -> GradientStores:
        """Return the stores for the gradients of ``part``, whose ports have ``roles``."""
        joint = part.joint
        found = cls({}, [], sparse_ports(part, roles), [], [], [])
        for p in joint.produced:
            role = roles[p]
            if isinstance(role, Scanned):
                found.scanned[p] = role
                found.slices.append(store_like(joint.trace.differentiable[p], role.axis))
            elif isinstance(role, Constant) and p not in found.sparse:
                found.constants.append(p)
        for p in found.sparse:
            found.sparse_values.append(store_like(slice_values(part, p), 0))
            found.sparse_rows.append(store_like(joint.rows[p], 0))
        return found

    def empty(self, values: Sequence[tf.Tensor], target: Target) -> Stores:
        """Return stores without gradients; ``values`` are those of all ports."""
        return (
            empty_all(self.slices, target),
            empty_all(self.sparse_values, target),
            [zeros_like(value, target) for value in pick(values, self.constants)],
        )

    def add(self, stores: Stores, s: tf.Tensor, gradients: Sequence[Gradient | None]) -> Stores:
        """Return ``stores`` with the ``gradients`` of section ``s``, one per port."""
        slices, sparse_values, sums = stores
        # None of the stored ones is None.
        found: list[Any] = list(gradients)
        slices = put_all(self.slices, slices, s, map(densify, pick(found, self.scanned)))
        values = map(values_of, pick(found, self.sparse))
        sparse_values = put_all(self.sparse_values, sparse_values, s, values)
        sums = list(map(operator.add, sums, pick(found, self.constants)))
        return slices, sparse_values, sums

    def gradients(
        self, stores: Stores, rows: Sequence[tf.Tensor], values: Sequence[tf.Tensor]
    ) -> dict[int, Gradient]:
        """Return the gradients that ``stores`` hold after the last section, by port.

        ``rows`` has the rows of all sections, for each port in ``sparse``.
        """
        slices, sparse_values, sums = stores
        found: dict[int, Gradient] = dict(zip(self.constants, sums))
        for (p, role), description, store in zip(self.scanned.items(), self.slices, slices):
            whole = description.whole(store)
            found[p] = pad_into(whole, values[p], role.axis, role.start)
        of_values = whole_all(self.sparse_values, sparse_values)
        for p, of_port, rows_of_port in zip(self.sparse, of_values, rows):
            found[p] = indexed_slices(of_port, rows_of_port, values[p])
        return found
