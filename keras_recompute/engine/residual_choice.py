"""Step 3 of the engine: which forward values the backward pass finds, and which it makes again.

Starting from the gradients, walk towards the inputs. Each forward value met on the way is

* *at hand*: an argument, a variable's value, and, where the caller keeps the outputs anyway, an output;
* *saved*: chosen by a scope or the policy, the result of an impure operation, or a shape (see ``_Chooser``);
* *recomputed*: everything else; the operation that makes it joins the backward program, and the walk goes on.

Only what the walk meets is ever saved, so a policy that would keep everything keeps no more than the plain gradient does.
A value and the tensors that merely pass it on are one: what is decided for one of them holds for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ..graph_traversal import reachable
from .annotations import alias_chain, alias_source, aliases, is_alternative
from .joint_graph import JointGraph
from .op_sets import CHEAP, EXTREMA, SHAPES, SOURCES, VIEWS
from .policies import Decision, Policy, decide, save_everything
from .program import inputs_of
from .scopes import scope_decision


def saved_values(
    joint: JointGraph, policy: Policy, targets: Iterable[tf.Tensor], available: set[Any], *, replays_all: bool = False
) -> tuple[list[tuple[tf.Tensor, Decision]], frozenset[tf.Operation]]:
    """Return the forward values to save or offload, and the marked operations to replay by their alternative.

    With ``replays_all`` only the first of the rules of ``_Chooser`` saves anything.
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
            is_free = any(t.ref() in available for t in passed_on) or origin.op.type == "Const"
            if not is_free and decision_about(origin) is not Decision.RECOMPUTE:
                saved[origin.ref()] = origin
                continue
            if is_alternative(operation) and all(
                t.ref() in available or decision_about(alias_source(t)) is not Decision.RECOMPUTE for t in operation.inputs[2:]
            ):
                replays.add(operation)
        waiting.extend(inputs_of(operation, frozenset(replays)))
    return [(origin, decision_about(origin)) for origin in saved.values()], frozenset(replays)


def residuals(joint: JointGraph, targets: Iterable[tf.Tensor], available: set[Any]) -> list[tf.Tensor]:
    """Return all forward values that ``targets`` need and that are not ``available``."""
    return [value for value, _ in saved_values(joint, save_everything, targets, available)[0]]


class _Chooser:
    """Decides about forward values. The first of these rules that applies holds:

    1. the result of an operation that may not run twice is saved, and what is found out about a text: XLA has no texts, and
       takes operations on them only where TensorFlow can run them before it compiles;
    2. the largest or smallest of some elements is not saved without the elements: its gradient finds by equality which of them
       it is, and a compiler need not make them again to the last digit;
    3. a shape is saved, for a few bytes, rather than the tensor that has it or the operations that make it (XLA knows
       every shape when it compiles, but not that of a value which it has stored and read again);
    4. the same elements in another shape are not saved beside the value that has them, if that is kept or given;
    5. under XLA a number that follows from shapes alone is not saved either, for the same reason, nor is a loop's list of
       tensors if shapes are unknown: TensorFlow asks for its zero, and has none. That of an empty list is never known, and
       there is nothing in it to save;
    6. the rows of a sparse gradient are saved if their replay would cost more than arithmetic: they are whole numbers, few
       beside the values that they belong to, and they are computed before the fence, where no replay may begin;
    7. what was made inside a ``recompute_scope`` or ``keep_scope`` follows the innermost of them;
    8. the policy decides: about the value, or any of its aliases, of which one may bear a name.
    """

    def __init__(self, joint: JointGraph, policy: Policy, available: set[Any], replays_all: bool) -> None:
        self._joint = joint
        self._policy = policy
        self._available = available
        self._replays_all = replays_all
        self._knows_shapes = joint.trace.target.knows_shapes
        self._shapes = () if replays_all or self._knows_shapes else SHAPES
        self._rows = set() if replays_all else {t.ref() for t in _dear_rows(joint, available)}
        self._keeps_lists = not self._knows_shapes or all(t.shape.is_fully_defined() for t in joint.trace.arguments)
        self._made: dict[Any, Decision] = {}

    def __call__(self, value: tf.Tensor) -> Decision:
        """Return the decision about ``value``, which no other tensor passes on."""
        if value.ref() not in self._made:
            self._made[value.ref()] = self._decide(value)
        return self._made[value.ref()]

    def _decide(self, value: tf.Tensor) -> Decision:
        if not self._joint.trace.purity.is_pure(value.op) or value.op.type in self._shapes or _comes_of_text(value):
            return Decision.SAVE
        if value.ref() in self._rows:
            return Decision.SAVE
        if self._replays_all or value.dtype == tf.resource or value.op.type == "EmptyTensorList":
            return Decision.RECOMPUTE
        if read_by_equality(value, self._joint) and not self._is_available(value.op.inputs[0]):
            return Decision.RECOMPUTE
        if (value.dtype == tf.variant and not self._keeps_lists) or (self._knows_shapes and _follows_from_shapes(value)):
            return Decision.RECOMPUTE
        if value.op.type in VIEWS and self._is_available(value.op.inputs[0]):
            return Decision.RECOMPUTE
        scoped = scope_decision(value.op)
        if scoped is not None:
            return scoped
        return max(decide(self._policy, t) for t in aliases(value) if t.op not in self._joint.backward)

    def _is_available(self, tensor: tf.Tensor) -> bool:
        chain = alias_chain(tensor)
        return any(t.ref() in self._available for t in chain) or self(chain[-1]) is not Decision.RECOMPUTE

    def applies_to(self, operation: tf.Operation) -> bool:
        """Whether what ``operation`` makes can be saved: it belongs to the forward pass, or reads a shape of it."""
        if operation.type == "Const":
            return False
        if operation not in self._joint.backward:
            return True
        return operation.type in self._shapes and all(t.op not in self._joint.backward for t in operation.inputs)


def read_by_equality(value: tf.Tensor, joint: JointGraph) -> bool:
    """Whether ``value`` is an extremum of elements that its gradient compares with it."""
    if value.op.type not in EXTREMA:
        return False
    return any(reader.type == "Equal" and reader in joint.backward for reader in value.op.inputs[0].consumers())


# Where a slice begins is packed from numbers. Saved behind a branch it would be no constant there,
# and XLA would compile the program for each batch of indices.
_AT_NO_COST = (*SHAPES, *SOURCES, "Identity", "Pack", "ConcatV2")


def _dear_rows(joint: JointGraph, available: set[Any]) -> Iterable[tf.Tensor]:
    """Yield the forward values that say the rows of sparse gradients, where making them again is no mere arithmetic."""

    def sources(operation: tf.Operation) -> Iterable[tf.Operation]:
        return (t.op for t in operation.inputs if t.ref() not in available)

    def passed_on(operation: tf.Operation) -> Iterable[tf.Operation]:
        is_passing = operation in joint.backward or operation.type in (*VIEWS, "Cast")
        return sources(operation) if is_passing else ()

    rows = [t.op for t in joint.rows.values() if t.ref() not in available]
    for operation in reachable(rows, passed_on):
        if operation in joint.backward or operation.type in (*VIEWS, "Cast"):
            continue
        made_from = reachable([operation], sources)
        if any(op.type not in CHEAP and op.type not in _AT_NO_COST for op in made_from):
            yield from (alias_source(t) for t in operation.outputs if t.dtype.is_integer)


def _comes_of_text(value: tf.Tensor) -> bool:
    return value.dtype != tf.string and any(t.dtype == tf.string for t in value.op.inputs)


def _follows_from_shapes(value: tf.Tensor) -> bool:
    """Whether ``value`` is a number or a list of them that is computed from shapes and constants, as sizes are."""

    def is_size(tensor: tf.Tensor) -> bool:
        is_computed = tensor.op.inputs or tensor.op.type == "Const"
        return is_computed and tensor.dtype in (tf.int32, tf.int64) and tensor.shape.rank in (0, 1)

    def made_from(reference: Any) -> list[Any]:
        tensor = reference.deref()
        return [t.ref() for t in tensor.op.inputs] if is_size(tensor) and tensor.op.type not in SHAPES else []

    found = [reference.deref() for reference in reachable([value.ref()], made_from)]
    return all(map(is_size, found)) and any(tensor.op.type in SHAPES for tensor in found)
