"""Scopes: values made inside are recomputed, or kept, whatever the policy says.

A scope says what not to store; ``checkpoint`` says between which points to recompute. In ::

    with recompute_scope():
        x = a + b
    y = x * c

the product's gradient reads ``x``, which was made inside. It is recomputed from ``a`` and ``b``,
although it is read outside and after the scope. ``checkpoint(lambda: (a + b) * c)`` would recompute
it as well, together with everything else in the function. A scope is a name scope, so it leaves
nothing behind except names of operations.

Source: the scope of RETURNN (``returnn.torch.util.gradient_checkpoint``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from ...errors import RecomputeWarning
from ..graph.annotations import MARK, is_traced
from ..policies import Decision

_RECOMPUTE, _KEEP = f"{MARK}scope.recompute", f"{MARK}scope.keep"


@contextmanager
def recompute_scope() -> Iterator[None]:
    """Recompute in the backward pass what is made inside, wherever it is read.

    Works in functions that the engine traces: ``checkpoint(fn, policy=save_everything)`` for a
    function in which nothing else is recomputed, any other policy, or a ``keras_recompute.Model``.
    Anywhere else it warns and does nothing.

    Examples:
        >>> def product(a, b, c):
        ...     with kr.recompute_scope():
        ...         x = a + b
        ...     return x * c
        >>> scoped = kr.checkpoint(product, policy=kr.policies.save_everything)
        >>> [row.origin for row in kr.saved_residuals(scoped, *tf.ones((3, 8)))]  # and not the sum
        ['a', 'b', 'c']
    """
    with _scope(_RECOMPUTE, "recompute_scope"):
        yield


@contextmanager
def keep_scope() -> Iterator[None]:
    """Keep until the backward pass what is made inside and read there.

    Works where ``recompute_scope`` does.

    Examples:
        >>> def network(x):
        ...     with kr.keep_scope():
        ...         x = tf.sin(x)
        ...     return tf.sin(tf.sin(x))
        >>> [row.origin for row in kr.saved_residuals(kr.checkpoint(network), tf.ones(8))]
        ['x', 'Sin']
    """
    with _scope(_KEEP, "keep_scope"):
        yield


@contextmanager
def _scope(marker: str, called: str) -> Iterator[None]:
    if not is_traced():
        where = (
            "in eager code"
            if tf.executing_eagerly()
            else "in a function or loop body that is not itself checkpointed"
        )
        warnings.warn(
            f"{called}() has no effect {where}. Use it inside the function that you give to "
            "checkpoint(fn, policy=save_everything), or in a layer of a keras_recompute.Model.",
            RecomputeWarning,
            stacklevel=5,  # this generator, the two context managers around it, the public one
        )
    with tf.name_scope(marker):
        yield


def scope_decision(operation: tf.Operation) -> Decision | None:
    """Return the decision of the innermost scope around ``operation``, or None outside all."""
    name = operation.name
    recompute, keep = name.rfind(_RECOMPUTE), name.rfind(_KEEP)
    if recompute == keep:
        return None
    return Decision.RECOMPUTE if recompute > keep else Decision.SAVE
