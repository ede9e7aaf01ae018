"""Updates of weights in the backward pass, so that the gradients of one section at a time are alive.

A training step computes all gradients and then updates all weights. In between, the gradients of
the whole network are alive, although most updates read only the gradient of their own weight. Here
the backward program of a section waits for the updates that can run before it. Its fence reads a
token, and when the step is complete that token is computed from the updated weights.

The graph of the step says which updates can run before a section, not the class of the optimizer:
an update can if it does not depend on the section's fence or a later one. Clipping by the global
norm, loss scaling and gradient accumulation depend on all gradients and so on the last fence:
their updates stay where they are.

Source: Lv et al., "Full parameter fine-tuning for large language models with limited resources"
(2023), section 3.1, where each update follows its gradient; here it is a section at a time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

import tensorflow as tf

from ..seams.tensorflow.operations import read_instead
from .gradient import is_gradient_of_ours
from .passes import target_now
from .writing import completed

_TOKENS = "_keras_recompute_update_tokens"  # attribute of the graph of a training step
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


@contextlib.contextmanager
def updates_in_backward() -> Iterator[None]:
    """Run the updates of weights inside as soon as their gradients are there.

    Put it around a whole training step in a ``tf.function``: the forward pass, the gradients and
    ``optimizer.apply``. At most the gradients of one checkpointed section are then alive at a time,
    where an update needs nothing but the gradient of its own weight. All results are the same. In
    eager code, where every operation runs at once, it does nothing.

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
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or hasattr(graph, _TOKENS):  # the outer one orders the updates
        yield
        return

    tokens: list[tf.Tensor] = []
    setattr(graph, _TOKENS, tokens)
    try:
        yield
    finally:
        delattr(graph, _TOKENS)
    if len(tokens) > 1:
        _compute_tokens(graph, tokens)


def update_token() -> list[tf.Tensor]:
    """Return what the next fence waits for beside its gradients; nothing outside a training step."""
    tokens = getattr(tf.compat.v1.get_default_graph(), _TOKENS, None)
    if tokens is None:
        return []
    tokens.append(tf.identity(tf.zeros(()), name="updates"))
    return tokens[-1:]


def _compute_tokens(graph: tf.Graph, tokens: list[tf.Tensor]) -> None:
    """Let each of ``tokens`` depend on the updates that can run before it."""
    _separate_gradients(graph, _Dependencies(graph, tokens).levels)
    step = _Dependencies(graph, tokens)
    ready: dict[int, list[tf.Tensor]] = defaultdict(list)
    for handle, dtype in step.assigned.values():
        level = step.written[handle.name]
        # Level n depends on the fences 0 to n - 1. No fence follows the gradients of the last one.
        if 0 < level < len(tokens):
            ready[level].append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
    target = target_now()
    for level, updated in ready.items():
        read_instead(tokens[level].op, 0, completed(updated, target))


def _separate_gradients(graph: tf.Graph, levels: dict[tf.Operation, int]) -> None:
    """Let the readers of an IdentityN read its inputs, where these depend on different fences.

    Keras passes all gradients through one such operation. It would make every update wait for all.
    """
    for operation in graph.get_operations():
        if operation.type != "IdentityN" or is_gradient_of_ours(operation):
            continue
        if len({levels[t.op] for t in operation.inputs}) > 1:
            for given, passed in zip(operation.inputs, operation.outputs):
                _replace(passed, given)


def _replace(tensor: tf.Tensor, by: tf.Tensor) -> None:
    for reader in list(tensor.consumers()):
        for index, read in enumerate(reader.inputs):
            if read is tensor:
                read_instead(reader, index, by)


class _Dependencies:
    """How many fences each operation depends on: the number of the last one, counted from 1.

    The graph of a function has no control edges yet between the operations on one variable.
    TensorFlow adds them when it is complete, in the order in which the operations were made.
    """

    def __init__(self, graph: tf.Graph, tokens: list[tf.Tensor]) -> None:
        self.levels: dict[tf.Operation, int] = {t.op: n for n, t in enumerate(tokens, start=1)}
        self.written: dict[str, int] = {}  # by the name of a variable's handle
        self.assigned: dict[str, tuple[tf.Tensor, tf.DType]] = {}
        self._read: dict[str, int] = defaultdict(int)
        self._values = set(self.levels)  # the operations that values lead to from a fence
        for operation in graph.get_operations():
            self._add(operation)

    def _add(self, operation: tf.Operation) -> None:
        before = [*(t.op for t in operation.inputs), *operation.control_inputs]
        level = max([self.levels.get(operation, 0), *(self.levels[each] for each in before)])
        handles = [t for t in operation.inputs if t.dtype == tf.resource]
        reads = operation.type in _READS
        for handle in handles:
            level = max(level, self.written.get(handle.name, 0))
            if not reads:
                level = max(level, self._read[handle.name])
        self.levels[operation] = level
        if any(t.op in self._values for t in operation.inputs):
            self._values.add(operation)

        for handle in handles:
            if reads:
                self._read[handle.name] = max(self._read[handle.name], level)
                continue
            self.written[handle.name] = level
            # Adam's weights are computed from its moments, which were updated before: no gradient
            # waits for the weights.
            dtype = _assigned_dtype(operation) if operation in self._values else None
            if dtype is not None:
                self.assigned[handle.name] = handle, dtype


def _assigned_dtype(operation: tf.Operation) -> tf.DType | None:
    """Return the type of what ``operation`` assigns to a variable; None if it assigns no numbers."""
    if not operation.type.startswith(("Assign", "ResourceScatter", "ResourceApply")):
        return None
    attributes = operation.node_def.attr
    name = "dtype" if "dtype" in attributes else "T"
    dtype = tf.as_dtype(attributes[name].type) if name in attributes else None
    return dtype if dtype is not None and (dtype.is_floating or dtype.is_integer) else None
