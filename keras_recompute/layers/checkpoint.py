"""The public ``checkpoint``: a function becomes a function, a Keras layer becomes a layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from ..engine.policies import Policy
from .backend_checkpoint import Checkpointed
from .checkpointed_layer import checkpointed_layer


def checkpoint(fn: Callable[..., Any] | None = None, *, policy: Policy | None = None) -> Any:
    """Return ``fn`` with a backward pass that recomputes what ``policy`` does not save.

    Without ``fn`` it returns a decorator. Results and gradients of any order are those of ``fn``.
    Dropout, batch statistics and other state behave as in ``fn``: what must not run twice is saved.

    Like ``tf.function``, ``fn`` runs in Python once per signature (types and shapes of tensors,
    values of everything else), not at every call. Effects of each call must be TensorFlow
    operations. ``fn`` is traced again after an attribute was set of a layer, of an argument object,
    or of the object that ``fn`` is or is a method of.

    That is so on TensorFlow. On JAX and PyTorch ``fn`` runs at each call, and on PyTorch once more
    for its replay; docs/backends.md says what differs there.

    Arguments that ``fn`` changes (lists, dicts, sets, data classes and other objects) are changed
    at every call, and gradients flow through what was put into them. A change to a variable or
    container around ``fn`` is reported by a RecomputeWarning. A function that is created again at
    each call reuses the program of its code and captures.

    Args:
        fn: A function, a method, a Keras layer or model, or any callable, from and to any nest of
            tensors and other values. Gradients reach its tensors, the variables that it reads and
            the tensors that it closes over.
        policy: What to save (see ``policies``). By default ``save_nothing``: only the inputs.

    Returns:
        For a Keras layer or model, a layer of its class with the same attributes and weights, whose
        calls are recomputed. It can be an attribute of a model, or a layer of a functional or
        sequential one. It is saved as the layer is, with the policy, and weight files are
        exchangeable. For anything else, a callable with the attributes of ``fn``. Both have
        ``__wrapped__``.

    Raises:
        InvalidArgumentError: ``fn`` is not callable, or ``policy`` is no policy of the backend.
            When called: a result has no tensor; an argument is a tensor of another graph, or a
            symbolic Keras tensor and ``fn`` is no layer; ``fn`` leaves a tensor in a variable or
            container around it, makes a variable at each call, or changes an argument in a way that
            no program can repeat: in a branch on a tensor, or a random generator, an iterator or a
            NumPy array; ``policy`` has a name that ``fn`` does not mark, on TensorFlow.
        UnsupportedError: When a layer is saved: its policy cannot be.

    Examples:
        >>> twice = kr.checkpoint(lambda x: tf.sin(tf.sin(x)))
        >>> x = tf.constant([0.0, 1.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = twice(x)
        >>> print(tape.gradient(y, x).numpy().round(3))
        [1.   0.36]
        >>> kr.replay_count(twice, x)  # the inner sine is computed again
        1
        >>> block = keras.Sequential([keras.layers.Dense(8, "gelu"), keras.layers.Dense(4)])
        >>> layers = [keras.Input((4,)), kr.checkpoint(block), keras.layers.Dense(1)]
        >>> model = keras.Sequential(layers)
        >>> len(model.trainable_variables)
        6
    """
    if fn is None:
        return functools.partial(checkpoint, policy=policy)
    function = Checkpointed(fn, policy)
    if isinstance(fn, keras.layers.Layer):
        return checkpointed_layer(fn, function.policy)
    return function
