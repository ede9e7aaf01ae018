"""Annotations of values in a traced function: names for policies, and alternatives for a replay.

Both are ordinary operations of the graph, recognized by their names. So they survive copying and
differentiation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from ...errors import InvalidArgumentError

# Names of operations and of scopes that annotate begin with it.
MARK = "recomputation_"
_NAMED, _END_OF_NAME = f"{MARK}name", "named"
# TensorFlow puts a number behind names that are taken.
_MARK = re.compile(rf"(?:^|/){_NAMED}\.([^/]*)\.{_END_OF_NAME}(?:_\d+)?$")
_ALTERNATIVE = f"{MARK}alternative"
_SOURCE = f"{MARK}source"
_traced: ContextVar[Any] = ContextVar("traced", default=None)


@contextmanager
def traced() -> Iterator[None]:
    """Mark the graph under construction as one that the engine traces.

    Annotations are read there.
    """
    token = _traced.set(tf.compat.v1.get_default_graph())
    try:
        yield
    finally:
        _traced.reset(token)


def is_traced() -> bool:
    """Whether annotations are read here.

    They are not in eager code, nor in a function or loop body inside a traced function.
    """
    return not tf.executing_eagerly() and _traced.get() is tf.compat.v1.get_default_graph()


def checkpoint_name(value: tf.Tensor, name: str) -> tf.Tensor:
    """Return ``value`` itself, marked with ``name`` for the policies that go by names.

    Args:
        value: A tensor, in a function that is checkpointed; anywhere else the mark does nothing.
        name: Any text. Several values may have one name.

    Raises:
        InvalidArgumentError: ``name`` is no string, or empty; ``value`` is no tensor, nor can it be
            made one.

    Examples:
        >>> def network(x):
        ...     return tf.sin(kr.checkpoint_name(tf.sin(tf.sin(x)), "half"))
        >>> saved = kr.checkpoint(network, policy=kr.policies.save_names("half"))
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones(4))]
        ['x', 'half']
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"checkpoint_name(value, {name!r}): give a name, a string such as 'half'"
        )
    # An operation's name has few characters. Any other is written as its code point between dots.
    valid_name = re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}.", name)
    try:
        return tf.identity(value, name=f"{_NAMED}.{valid_name}.{_END_OF_NAME}")
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"checkpoint_name(value, {name!r}): a {type(value).__name__} cannot be marked. Mark "
            "each tensor in it"
        ) from error


def annotated_name(tensor: tf.Tensor) -> str | None:
    """Return the name that ``tensor`` was marked with, or None."""
    found = _MARK.search(tensor.op.name) if tensor.op.type == "Identity" else None
    return found and re.sub(r"\.([0-9a-f]+)\.", lambda code: chr(int(code[1], 16)), found[1])


def replay_alternative(
    values: Sequence[tf.Tensor],
    recompute: Callable[[], Sequence[tf.Tensor]],
    *,
    given: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Return ``values``, marked as recomputable by ``recompute()`` if ``given`` are available then.

    A recurrence, for example, must run step by step to find its outputs. Once they are known, every
    gate follows from one product. In a graph that the engine does not trace nothing is replayed,
    and ``recompute`` is not called. For use beside a hand-written gradient that reads the values:
    derivatives do not go through ``recompute``.
    """
    if not is_traced():
        return list(values)
    with tf.name_scope("again"):
        alternatives = recompute()
    return [
        tf.identity_n([value, alternative, *given], name=_ALTERNATIVE)[0]
        for value, alternative in zip(values, alternatives)
    ]


def inference_alternative(
    values: Sequence[tf.Tensor], alone: Callable[[], Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return ``values``, marked as computable by ``alone()`` where no residual of theirs is kept.

    A recurrence, for example, stores its gates on the way to its outputs. Where no gradient will
    read the gates, a loop that does not store them is faster. In a graph that the engine does not
    trace ``alone`` is not called.
    """
    if not is_traced():
        return list(values)
    with tf.name_scope("alone"):
        cheaper = alone()
    return [
        tf.identity_n([light, value], name=_ALTERNATIVE)[0] for light, value in zip(cheaper, values)
    ]


def is_alternative(operation: tf.Operation) -> bool:
    """Whether ``operation`` chooses between two ways to compute one value.

    It reads the value, its alternative, and what the alternative needs in the backward pass. The
    forward pass takes an alternative that is made anyway.
    """
    # One that was copied into another program has been decided there, and reads one value only.
    is_marked = operation.type == "IdentityN" and operation.name.rsplit("/", 1)[-1].startswith(
        _ALTERNATIVE
    )
    return is_marked and len(operation.inputs) > 1


def replay_source(value: tf.Tensor) -> tf.Tensor:
    """Return ``value``, marked as a value that makes a replay cheaper.

    The states between the sections of a loop are such values.
    """
    return tf.identity(value, name=_SOURCE)


def is_replay_source(tensor: tf.Tensor) -> bool:
    """Whether ``tensor`` is marked as a ``replay_source``, or given to a ``replay_alternative``."""
    operation = tensor.op
    if operation.type == "Identity" and operation.name.rsplit("/", 1)[-1].startswith(_SOURCE):
        return True
    alternatives = filter(is_alternative, tensor.consumers())
    return any(source is tensor for op in alternatives for source in op.inputs[2:])


def is_identity(operation: tf.Operation) -> bool:
    """Whether ``operation`` returns its inputs as they are.

    (IdentityN carries custom gradients.)
    """
    return operation.type == "Identity" or (
        operation.type == "IdentityN" and not is_alternative(operation)
    )


def alias_chain(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Return ``tensor`` and the tensors that it is an alias of, nearest first."""
    chain = [tensor]
    while is_identity(chain[-1].op):
        chain.append(chain[-1].op.inputs[chain[-1].value_index])
    return chain


def alias_source(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that ``tensor`` is an alias of, by any number of identities."""
    return alias_chain(tensor)[-1]


def aliases(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Return ``tensor`` and all tensors that identities make of it, nearest first."""
    found = [tensor]
    for value in found:
        for operation in value.consumers():
            if is_identity(operation):
                found.extend(y for x, y in zip(operation.inputs, operation.outputs) if x is value)
    return found
