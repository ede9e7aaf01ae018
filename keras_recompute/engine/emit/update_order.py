"""The order of weight updates: in the backward pass, each as soon as its gradient is there.

A training step computes all gradients and then updates all weights. In between, the gradients of
the whole network are alive, although most updates read only the gradient of their own weight. Here
the backward program of a section waits for the updates that can run before it. Its fence reads a
token, and when the step is complete that token is computed from the updated weights.

The graph of the step says which updates can run before a section, not the class of the optimizer:
an update can if it does not depend on the section's fence or a later one. Clipping by the global
norm, loss scaling and gradient accumulation depend on all gradients and so on the last fence:
their updates stay where they are.

In a step of several replicas a weight is updated on all devices once gradients are summed. So
fences are counted within each replica, and one waits for the updates behind the earlier fences of
all replicas.

Source: Lv et al., "Full parameter fine-tuning for large language models with limited resources"
(2023), section 3.1, where each update follows its gradient; here it is a section at a time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ...graph_traversal import topological_order
from ...seams.tensorflow.operations import redirect_readers, replace_input
from ..capture.custom_vjp import has_custom_gradient
from ..graph.dataflow import operations_before, pick, producers, resource_inputs
from ..graph.target_ops import completion_token
from ..passes import target_now

_TOKENS = "_keras_recompute_update_tokens"  # attribute of the graph of a training step
# The tokens of fences, in the order in which the fences were made, by the number of the replica.
_Tokens = dict[int, list[tf.Tensor]]
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


@contextlib.contextmanager
def updates_in_backward(optimizer: Any = None) -> Iterator[None]:
    """Update the weights of each checkpointed section before the next section's backward pass.

    Put it around a whole training step in a ``tf.function``: the forward pass, the gradients and
    ``optimizer.apply``. The gradients of one section at a time are then alive. An update that needs
    all gradients, as with ``global_clipnorm``, stays at the end. Results do not change. It does
    nothing in eager code, where operations run in the order in which they are written.

    Args:
        optimizer: What PyTorch has to know; here the graph of the step says it.

    Examples:
        >>> @tf.function(jit_compile=True)
        ... def train_step(x, y):
        ...     with kr.updates_in_backward():
        ...         with tf.GradientTape() as tape:
        ...             loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        ...         gradients = tape.gradient(loss, model.trainable_variables)
        ...         optimizer.apply(gradients, model.trainable_variables)
        ...     return loss
    """
    del optimizer
    with _updating_step(tokens=defaultdict(list)):
        yield


@contextlib.contextmanager
def ordered_updates() -> Iterator[None]:
    """Do what ``updates_in_backward`` does, for a step that ``fit`` runs, where that saves memory.

    XLA on a CPU or TPU runs updates as soon as it can by itself.
    """
    with _updating_step(tokens=None if target_now().updates_early else defaultdict(list)):
        yield


@contextlib.contextmanager
def _updating_step(tokens: _Tokens | None) -> Iterator[None]:
    """Note in the graph under construction that the step updates weights.

    ``tokens`` collects the tokens of fences; None where updates are not ordered.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or hasattr(graph, _TOKENS):  # the outer one orders the updates
        yield
        return

    setattr(graph, _TOKENS, tokens)
    try:
        yield
    finally:
        delattr(graph, _TOKENS)
    if tokens and max(map(len, tokens.values())) > 1:
        _compute_tokens(graph, tokens)


def updates_follow() -> bool:
    """Whether the training step under construction is known to update its weights."""
    return hasattr(tf.compat.v1.get_default_graph(), _TOKENS)


def update_tokens() -> list[tf.Tensor]:
    """Return a new token for the next fence to wait for; none outside ``updates_in_backward``."""
    tokens = getattr(tf.compat.v1.get_default_graph(), _TOKENS, None)
    if tokens is None:
        return []
    own = tokens[_replica()]
    own.append(tf.identity(tf.zeros(()), name="updates"))
    return own[-1:]


def _replica() -> int:
    """Return the number of the replica whose part of a step is under construction; 0 if alone."""
    context = tf.distribute.get_replica_context()
    number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if number is None else int(number)


def _compute_tokens(graph: tf.Graph, tokens: _Tokens) -> None:
    """Let each of ``tokens`` depend on the updates that can run before it."""
    step = _Dependencies(graph, tokens)
    ready: dict[int, list[tf.Tensor]] = defaultdict(list)
    # Level n depends on the fences 0 to n - 1. No fence follows the gradients of the last one.
    last = max(map(len, tokens.values()))
    for handle, dtype in step.assigned.values():
        level = step.write_levels[handle.name]
        if 0 < level < last:
            ready[level].append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
    target = target_now()
    for level, updated in ready.items():
        token = completion_token(updated, target)
        for of_replica in tokens.values():
            for waiting in of_replica[level : level + 1]:
                replace_input(waiting.op, 0, token)


class _Dependencies:
    """The last fence that each operation depends on, counted from 1; 0 if it depends on none.

    Fences are counted within each replica. What depends on fences of several has the last number.

    The control edges between operations on one variable are not there yet: TensorFlow adds them
    when the graph of the function is complete. They follow the order in which the operations were
    made, which is the order of this walk.
    """

    def __init__(self, graph: tf.Graph, tokens: _Tokens) -> None:
        # The level of each variable that is written, by its handle.
        self.write_levels: dict[str, int] = {}
        self.assigned: dict[str, tuple[tf.Tensor, tf.DType]] = {}  # handle and type, from gradients
        self._levels: dict[tf.Operation, int] = {}
        for of_replica in tokens.values():
            self._levels.update((t.op, n) for n, t in enumerate(of_replica, start=1))
        self._read: dict[str, int] = defaultdict(int)
        self._tokens = frozenset(self._levels)
        self._behind_fences = set(self._levels)  # by tensors alone, not by way of a variable
        for operation in topological_order(graph.get_operations(), operations_before):
            self._add(operation)
            self._separate(operation)

    def _add(self, operation: tf.Operation) -> None:
        before = operations_before(operation)
        level = max([self._levels.get(operation, 0), *pick(self._levels, before)])
        handles = pick(operation.inputs, resource_inputs(operation))
        reads = operation.type in _READS
        for handle in handles:
            level = max(level, self.write_levels.get(handle.name, 0))
            if not reads:
                level = max(level, self._read[handle.name])
        self._levels[operation] = level
        # Without XLA a fence is a control dependency on the token.
        is_fenced = not self._tokens.isdisjoint(operation.control_inputs)
        if is_fenced or not self._behind_fences.isdisjoint(producers(operation)):
            self._behind_fences.add(operation)

        for handle in handles:
            if reads:
                self._read[handle.name] = max(self._read[handle.name], level)
                continue
            self.write_levels[handle.name] = level
            # Adam computes a weight from its moments, which were updated before. Only the moments
            # read the gradient, so it is free without the weight.
            dtype = _assigned_dtype(operation) if operation in self._behind_fences else None
            if dtype is not None:
                self.assigned[handle.name] = handle, dtype

    def _separate(self, operation: tf.Operation) -> None:
        """Let the readers of an IdentityN read its inputs, if these depend on different fences.

        Keras passes all gradients through one IdentityN. Every update would wait for all of them.
        """
        if operation.type != "IdentityN" or has_custom_gradient(operation):
            return
        if len(set(pick(self._levels, producers(operation)))) > 1:
            for given, passed in zip(operation.inputs, operation.outputs):
                redirect_readers(given, instead_of=passed, readers=passed.consumers())


def _assigned_dtype(operation: tf.Operation) -> tf.DType | None:
    """Return the element type that ``operation`` assigns to a variable; None if not numbers."""
    if not operation.type.startswith(("Assign", "ResourceScatter", "ResourceApply")):
        return None
    attributes = operation.node_def.attr
    name = "dtype" if "dtype" in attributes else "T"
    dtype = tf.as_dtype(attributes[name].type) if name in attributes else None
    return dtype if dtype is not None and (dtype.is_floating or dtype.is_integer) else None
