"""Step 3 of the engine: which forward values the backward pass is given, and which it recomputes.

The walk starts from the gradients and goes towards the inputs. Each forward value on the way is

* *available*: an argument, a variable's value, or an output that the caller keeps anyway;
* *saved*: chosen by a scope or the policy, the result of an impure operation, or a shape (see
  ``_Chooser``);
* *recomputed*: everything else. The operation that makes it joins the backward program, and the
  walk goes on through its inputs.

Only values on this walk are saved. So a policy that saves everything keeps no more than the plain
gradient does. A value and its aliases are one: what is decided for one holds for all.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ...graph_traversal import reachable
from ..capture.joint_graph import JointGraph
from ..graph.annotations import alias_chain, alias_source, aliases, is_alternative
from ..graph.dataflow import has_static_shapes, kinds, makers, producers, tensor_refs
from ..graph.op_sets import CHEAP, EXTREMA, SHAPES, SOURCES, VIEWS
from ..policies import Decision, Policy, decide, save_everything
from .program_slice import inputs_of
from .scopes import scope_decision


def saved_values(
    joint: JointGraph,
    policy: Policy,
    targets: Iterable[tf.Tensor],
    available: set[Any],
    *,
    replays_all: bool = False,
) -> tuple[list[tuple[tf.Tensor, Decision]], frozenset[tf.Operation]]:
    """Return the values to save or offload, and the operations that replay their alternative.

    With ``replays_all`` only the first rule of ``_Chooser`` saves anything.
    """
    decision_about = _Chooser(joint, policy, available, replays_all)
    saved: dict[Any, tf.Tensor] = {}
    replays: set[tf.Operation] = set()
    seen: set[Any] = set()
    waiting = list(targets)
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in available or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        operation = tensor.op
        if decision_about.applies_to(operation):
            passed_on = alias_chain(tensor)
            origin = passed_on[-1]
            is_given = not available.isdisjoint(tensor_refs(passed_on))
            is_free = is_given or origin.op.type == "Const"
            if not is_free and decision_about(origin) is not Decision.RECOMPUTE:
                saved[origin.ref()] = origin
                continue
            if is_alternative(operation) and all(
                t.ref() in available or decision_about(alias_source(t)) is not Decision.RECOMPUTE
                for t in operation.inputs[2:]
            ):
                replays.add(operation)
        waiting.extend(inputs_of(operation, frozenset(replays)))
    return [(origin, decision_about(origin)) for origin in saved.values()], frozenset(replays)


def residuals(
    joint: JointGraph, targets: Iterable[tf.Tensor], available: set[Any]
) -> list[tf.Tensor]:
    """Return all forward values that ``targets`` need and that are not ``available``."""
    saved, _ = saved_values(joint, save_everything, targets, available)
    return list(map(operator.itemgetter(0), saved))


class _Chooser:
    """Decides about forward values, by the first of these rules that applies.

    1. The result of an operation that may not run twice is saved, and so is what is computed from a
       text: XLA has no texts, and takes operations on them only where TensorFlow can run them
       beforehand.
    2. An extremum of elements is not saved without the elements. Its gradient finds by equality
       which element it is, and a compiler need not recompute elements to the last digit.
    3. A shape is saved, for a few bytes, rather than the tensor that has it or the operations that
       make it. XLA knows every shape when it compiles, but not that of a value that was stored and
       read again.
    4. A view of a value that is kept or given is not saved beside it.
    5. Under XLA a number that follows from shapes alone is not saved either, for the same reason.
       Nor is a loop's list of tensors if shapes are unknown: TensorFlow asks for its zero, and has
       none. The list ``EmptyTensorList`` is never known, and there is nothing in it to save.
    6. The rows of a sparse gradient are saved if a replay of them costs more than arithmetic. They
       are whole numbers, few beside the values that they belong to, and are computed before the
       fence, where no replay may begin.
    7. The innermost ``recompute_scope`` or ``keep_scope`` decides about what was made inside it.
    8. The policy decides: about the value, or any of its aliases, since one may have a name.
    """

    def __init__(
        self, joint: JointGraph, policy: Policy, available: set[Any], replays_all: bool
    ) -> None:
        self._joint = joint
        self._policy = policy
        self._available = available
        self._replays_all = replays_all
        self._knows_shapes = joint.trace.target.knows_shapes
        self._shapes = () if replays_all or self._knows_shapes else SHAPES
        self._rows = set() if replays_all else tensor_refs(_dear_rows(joint, available))
        has_known_shapes = has_static_shapes(joint.trace.arguments)
        self._keeps_lists = has_known_shapes or not self._knows_shapes
        self._made: dict[Any, Decision] = {}

    def __call__(self, value: tf.Tensor) -> Decision:
        """Return the decision about ``value``, which is no alias of another tensor."""
        if value.ref() not in self._made:
            self._made[value.ref()] = self._decide(value)
        return self._made[value.ref()]

    def _decide(self, value: tf.Tensor) -> Decision:
        # Rules 1 and 3.
        is_pure = self._joint.trace.purity.is_pure(value.op)
        if not is_pure or value.op.type in self._shapes or _comes_of_text(value):
            return Decision.SAVE
        # Rule 6.
        if value.ref() in self._rows:
            return Decision.SAVE
        if self._replays_all or value.dtype == tf.resource or value.op.type == "EmptyTensorList":
            return Decision.RECOMPUTE
        # Rule 2.
        if read_by_equality(value, self._joint) and not self._is_available(value.op.inputs[0]):
            return Decision.RECOMPUTE
        # Rule 5: lists of tensors, and numbers that follow from shapes.
        if value.dtype == tf.variant and not self._keeps_lists:
            return Decision.RECOMPUTE
        if self._knows_shapes and _follows_from_shapes(value):
            return Decision.RECOMPUTE
        # Rule 4.
        if value.op.type in VIEWS and self._is_available(value.op.inputs[0]):
            return Decision.RECOMPUTE
        # Rules 7 and 8.
        scoped = scope_decision(value.op)
        if scoped is not None:
            return scoped
        forward = (t for t in aliases(value) if t.op not in self._joint.backward)
        return max(map(functools.partial(decide, self._policy), forward))

    def _is_available(self, tensor: tf.Tensor) -> bool:
        chain = alias_chain(tensor)
        if not self._available.isdisjoint(tensor_refs(chain)):
            return True
        return self(chain[-1]) is not Decision.RECOMPUTE

    def applies_to(self, operation: tf.Operation) -> bool:
        """Whether the outputs of ``operation`` can be saved.

        It belongs to the forward pass, or reads a shape of it.
        """
        if operation.type == "Const":
            return False
        if operation not in self._joint.backward:
            return True
        is_shape = operation.type in self._shapes
        return is_shape and self._joint.backward.isdisjoint(producers(operation))


def read_by_equality(value: tf.Tensor, joint: JointGraph) -> bool:
    """Whether ``value`` is an extremum of elements that its gradient compares with it."""
    if value.op.type not in EXTREMA:
        return False
    readers = joint.backward.intersection(value.op.inputs[0].consumers())
    return "Equal" in kinds(readers)


# Where a slice begins is packed from numbers. Saved behind a branch it would be no constant there,
# and XLA would compile the program for each batch of indices.
_COSTS_LITTLE = CHEAP.union(SHAPES, SOURCES, ("Identity", "Pack", "ConcatV2"))


def _dear_rows(joint: JointGraph, available: set[Any]) -> Iterable[tf.Tensor]:
    """Yield forward values that are rows of sparse gradients and cost more than arithmetic."""

    def sources(operation: tf.Operation) -> Iterable[tf.Operation]:
        return (t.op for t in operation.inputs if t.ref() not in available)

    def passes_rows_on(operation: tf.Operation) -> bool:
        return operation in joint.backward or operation.type in (*VIEWS, "Cast")

    def passed_on(operation: tf.Operation) -> Iterable[tf.Operation]:
        return sources(operation) if passes_rows_on(operation) else ()

    rows = [t.op for t in joint.rows.values() if t.ref() not in available]
    for operation in itertools.filterfalse(passes_rows_on, reachable(rows, passed_on)):
        made_from = reachable([operation], sources)
        if not kinds(made_from) <= _COSTS_LITTLE:
            yield from (alias_source(t) for t in operation.outputs if t.dtype.is_integer)


def _comes_of_text(value: tf.Tensor) -> bool:
    return value.dtype != tf.string and any(t.dtype == tf.string for t in value.op.inputs)


def _follows_from_shapes(value: tf.Tensor) -> bool:
    """Whether ``value`` is one or more numbers computed from shapes and constants alone."""

    def is_size(tensor: tf.Tensor) -> bool:
        is_computed = tensor.op.inputs or tensor.op.type == "Const"
        return is_computed and tensor.dtype in (tf.int32, tf.int64) and tensor.shape.rank in (0, 1)

    def made_from(reference: Any) -> list[Any]:
        tensor = reference.deref()
        if not is_size(tensor) or tensor.op.type in SHAPES:
            return []
        return [t.ref() for t in tensor.op.inputs]

    found = [reference.deref() for reference in reachable([value.ref()], made_from)]
    return all(map(is_size, found)) and not kinds(makers(found)).isdisjoint(SHAPES)
