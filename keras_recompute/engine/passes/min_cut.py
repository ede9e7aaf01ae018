"""A minimum-cut partitioner: it saves the residuals from which cheap ones are recomputed.

For every target. It is the policy where none is given, such as after the last checkpoint, and
``staging`` cuts by it. A gradient reads three results of a convolution with normalization and
activation. The second and third follow from the first by elementwise arithmetic, which takes a
fraction of the time of the products around it. So where all residuals are saved, these need not be.
In a replayed section they are made when they are read and not before. That needs a fence: a
compiler would merge them with the values that the replay itself reads.

The saved values are a smallest cut between the products and the residuals. Of the gelu of a
product, for which a gradient reads four arrays, that is the product alone.

What it gains: benchmarks/notes/residuals.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import tensorflow as tf

from ..graph.annotations import alias_source
from ..graph.dataflow import tensor_refs
from ..graph.op_sets import CHEAP, ELEMENTWISE, is_compared, known_elements
from ..policies import Policy
from .max_flow import minimum_cut
from .thresholds import CUT_BYTE, CUT_SOURCES, CUT_STEPS


def min_cut_policy(residuals: Iterable[tf.Tensor], given: Set[Any]) -> Policy:
    """Return the policy that saves the fewest bytes from which arithmetic makes all ``residuals``.

    No residual is an alias of another tensor. ``given`` are references to available tensors.
    """
    chains = _CutGraph(given)
    wanted = tensor_refs(residuals)
    for reference in wanted:
        chains.follow(reference.deref())
    saved = minimum_cut(chains.costs, chains.edges, chains.beginnings, wanted)

    def policy(value: tf.Tensor) -> bool:
        origin = alias_source(value)
        return origin.ref() in saved or origin.op.type not in _AGAIN

    return policy


_AGAIN = CHEAP | ELEMENTWISE


class _CutGraph:
    """The graph of tensors that lead by arithmetic from saved or given values to the residuals."""

    def __init__(self, given: Set[Any]) -> None:
        self._given = given
        self._sources: dict[Any, frozenset[Any]] = {}
        self._steps: dict[Any, int] = {}
        self.costs: dict[Any, int] = {}
        self.edges: list[tuple[Any, Any]] = []
        self.beginnings: set[Any] = set()

    def follow(self, residual: tf.Tensor) -> None:
        """Enter ``residual`` and all that it is made from, each after its inputs."""
        waiting = [residual]
        while waiting:
            tensor = waiting[-1]
            if tensor.ref() in self._sources:
                waiting.pop()
                continue
            inputs = [] if self._is_beginning(tensor) else list(map(alias_source, tensor.op.inputs))
            missing = [t for t in inputs if t.ref() not in self._sources]
            if missing:
                waiting.extend(missing)
            else:
                self._enter(tensor, inputs)

    def _is_beginning(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self._given or tensor.op.type not in _AGAIN or is_compared(tensor)

    def _enter(self, tensor: tf.Tensor, inputs: list[tf.Tensor]) -> None:
        reference, size = tensor.ref(), known_elements(tensor)
        alone = frozenset([reference])
        self._sources[reference], self._steps[reference] = alone, 0
        if reference in self._given or tensor.op.type == "Const":
            return
        # Of equal sizes not the one that follows by arithmetic: a fence that reads it would keep
        # what it follows from as well.
        self.costs[reference] = CUT_BYTE * size * tensor.dtype.size + (tensor.op.type in CHEAP)
        large = [t.ref() for t in inputs if known_elements(t) >= size]
        sources = frozenset().union(*map(self._sources.__getitem__, large))
        steps = 1 + max((self._steps[t.ref()] for t in inputs), default=0)
        if self._is_beginning(tensor) or len(sources) > CUT_SOURCES or steps > CUT_STEPS:
            self.beginnings.add(reference)
            return
        self._sources[reference], self._steps[reference] = sources, steps
        self.edges.extend((t.ref(), reference) for t in inputs if t.ref() in self.costs)
