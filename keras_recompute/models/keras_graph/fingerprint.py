"""When layers, calls and sections are equal: by what they hold, not by what ``get_config`` says.

Two operations with equal fingerprints compute the same, given the same values of their weights:

* They are of one class, and their attributes are equal. Numbers, strings, containers, dtypes, small
  arrays and tensors are equal by value; functions by their code and all that it refers to; layers
  and Python objects by their class and attributes in turn.
* Their variables stand in the same places, with the same shapes, types and flags. A variable that
  an operation does not track is equal to itself alone. So is any object of an unknown kind.
* What they share inside they share in the same way: everything is numbered as it is met, and met
  again by its number (a canonical labelling of rooted graphs with ordered edges).

Attributes that Keras keeps for itself do not count, nor the name, the path and the initializers,
unless the code of a user's class reads them (see ``call_code``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from ...engine.calls import IdentityKey
from ...seams.keras.layers import layers_in
from .call_code import CallCode, call_code, is_of_known_package
from .call_graph import Call, Key
from .object_graph import ObjectGraph, TooLargeError


class Level(enum.Enum):
    """In what operations must agree to be equal."""

    # They are one and the same object.
    SAME_VARIABLES = enum.auto()
    # Isomorphic, up to the values of weights.
    SAME_STRUCTURE = enum.auto()


class Hashed:
    """Wraps a nested tuple so that its hash is computed once."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hashed):
            return False
        return self is other or (self._hash == other._hash and self._value == other._value)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Fingerprint:
    """What makes an operation equal to others.

    ``objects`` are the operations and variables in it, in the order of the key. ``is_portable``
    says whether the key is free of objects of a model, ``is_known`` whether all classes in it are
    Keras's, KerasHub's or ours. ``code`` is what the code of a user's classes names.
    """

    key: Hashable
    objects: tuple[Any, ...]
    is_portable: bool
    is_known: bool
    code: CallCode


class Fingerprints:
    """The fingerprints of operations, each computed once; good until an attribute is changed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Fingerprint]] = {}
        self._keys: dict[Hashable, Hashable] = {}

    def of(self, operation: Any) -> Fingerprint:
        """Return the fingerprint of ``operation``."""
        if id(operation) not in self._known:
            found = _fingerprint(operation)
            # Equal keys become one object, so that they are compared value by value only once.
            found = replace(found, key=self._keys.setdefault(found.key, found.key))
            self._known[id(operation)] = operation, found
        return self._known[id(operation)][1]


def same_object(operation: Any) -> Fingerprint:
    """Return the fingerprint of an operation that is equal to itself alone."""
    return Fingerprint(IdentityKey(operation), (operation,), False, False, CallCode())


def calls_key(
    calls: Sequence[Call],
    value_number: Callable[[Key], Hashable],
    fingerprint_of: Callable[[Any], Fingerprint],
) -> Hashable:
    """Return what sequences of ``calls`` are equal in.

    ``value_number`` says which role a value plays, ``fingerprint_of`` what an operation must be
    equal in. Layers and weights that several calls share are numbered through all of them.
    """
    numbers: dict[int, int] = {}
    keys = []
    for call in calls:
        found = fingerprint_of(call.operation)
        shared = tuple(numbers.setdefault(id(each), len(numbers)) for each in found.objects)
        keys.append((found.key, shared, arguments_key(call, value_number)))
    return Hashed(tuple(keys))


def arguments_key(call: Call, value_number: Callable[[Key], Hashable]) -> Hashable:
    """Return a key that is equal for equal arguments.

    ``value_number`` gives the role of a value.
    """
    return ObjectGraph(value_number=value_number).key((call.args, call.kwargs))


def _fingerprint(operation: Any) -> Fingerprint:
    inside = layers_in(operation) if isinstance(operation, keras.layers.Layer) else [operation]
    code = call_code(inside) if isinstance(operation, keras.Operation) else CallCode()
    is_known = all(is_of_known_package(type(each)) for each in inside)
    walk = ObjectGraph(own=getattr(operation, "variables", ()), code=code)
    try:
        # The order of the variables is how weights of one operation are told those of another.
        key = Hashed((walk.key(operation), walk.key(list(walk.own))))
    except (TooLargeError, RecursionError):
        return Fingerprint(IdentityKey(operation), (operation,), False, is_known, code)
    return Fingerprint(key, tuple(walk.objects), walk.is_portable, is_known, code)
