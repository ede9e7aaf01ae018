"""What a gradient has to find, and what it makes again on the way at no cost worth speaking of.

Of a convolution, the normalisation behind it and the activation behind that a gradient reads three results. The second and
the third follow from the first by arithmetic on elements, which takes a fraction of the time of the products around it.
So where all residuals are kept, those need not be; and where a section is replayed, they are made when they are read and
not before, which needs a fence: a compiler would merge them with those that the replay itself reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import tensorflow as tf

from .cost import CHEAP, known_elements
from .marks import equal_values
from .policies import Policy

_SOURCES = 2  # what is made again is made from so many values at most: a long sum would be added up anew for each of its terms
_STEPS = 64  # by so many operations at most


def all_but_cheap(residuals: Iterable[tf.Tensor], given: Set[Any]) -> Policy:
    """Return the policy that saves of ``residuals`` those that do not follow by arithmetic from others, or from ``given``.

    No other tensor passes on a residual; ``given`` are references to tensors that are at hand.
    """
    ordered = sorted(residuals, key=lambda t: t.op._id)  # each after those it is made from
    known = {t.ref() for t in ordered} | given
    made_from: dict[Any, set[Any]] = {}
    for tensor in ordered:
        sources = _sources(tensor, known, made_from)
        if sources is not None:
            made_from[tensor.ref()] = sources
    saved = {t.ref() for t in ordered} - made_from.keys()

    def policy(value: tf.Tensor) -> bool:
        origin = _origin(value)
        return origin.ref() in saved or (origin.ref() not in made_from and origin.op.type not in CHEAP)

    return policy


def _sources(value: tf.Tensor, known: Set[Any], made_from: dict[Any, set[Any]]) -> set[Any] | None:
    """Return the few values that ``value`` follows from by cheap operations; None if it does not.

    Inputs smaller than ``value`` do not count. ``made_from`` has the sources of values that are not saved.
    """
    size, found = known_elements(value), set[Any]()
    waiting = [value]
    for _ in range(_STEPS):
        if not waiting:
            return found
        operation = waiting.pop().op
        if operation.type not in CHEAP:
            return None
        for tensor in map(_origin, operation.inputs):
            if known_elements(tensor) < size:
                continue
            if tensor.ref() in known:
                found |= made_from.get(tensor.ref(), {tensor.ref()})
            else:
                waiting.append(tensor)
        if len(found) > _SOURCES:
            return None
    return None


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    return equal_values(tensor)[-1]
