"""``checkpoint`` as users call it: a function becomes a function, a Keras layer becomes a layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from ..engine import checkpoint as engine
from ..engine.policies import Policy
from .checkpointed_layer import checkpointed_layer


def checkpoint(fn: Callable[..., Any] | None = None, *, policy: Policy | None = None) -> Any:
    """Return ``fn`` with a backward pass that recomputes what ``policy`` does not save; without
    ``fn``, a decorator.

    Results and gradients of any order are those of ``fn``. Dropout, batch statistics and other
    state behave as in ``fn`` itself: what may not run twice does not.

    Python runs ``fn`` once per signature (types and shapes of tensors, values of everything else),
    not at every call, as under ``tf.function``: what it should do each time must be done by
    TensorFlow. It is run again once an attribute was set of a layer, of an object that it is given,
    or of the object that it is or is a method of (see ``attributes``). Lists, dicts, sets, data
    classes and other objects that ``fn`` is given and changes come back changed at every call, with
    the gradients of what was put into them. A change that ``fn`` makes to a variable or container
    around it is noticed with a RecomputeWarning. A function made anew at each call finds the
    program of its code and of what it captures.

    Args:
        fn: A function, a method, a Keras layer or model, or any callable, from and to any nest of
            tensors and other values. Gradients reach its tensors, the variables that it reads and
            the tensors that it closes over.
        policy: What to save (see ``policies``). By default ``save_nothing``: only the inputs are
            kept.

    Returns:
        Of a Keras layer or model, a layer of its class with the same attributes and weights, whose
            calls are recomputed: an attribute of a model, a layer of a functional or sequential
            one. It is saved as the layer is, with the policy, and weight files of the one load into
            the other. Of anything else, a callable with the attributes of ``fn``. Both have
            ``__wrapped__``.

    Raises:
        InvalidArgumentError: ``fn`` or ``policy`` is not callable. When called: a result has no
            tensor; an argument is a tensor of another graph, or a symbolic Keras tensor and ``fn``
            is no layer; ``fn`` leaves a tensor behind in a variable or
            container around it, makes a variable each time, or changes an argument where no program
                can do it again: in a branch on a tensor, a random generator, an iterator, a NumPy
                array; ``policy`` has a name that ``fn`` does not mark.
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
    function = engine.checkpoint(fn, policy=policy)
    if isinstance(fn, keras.layers.Layer):
        return checkpointed_layer(fn, function.policy)
    return function
