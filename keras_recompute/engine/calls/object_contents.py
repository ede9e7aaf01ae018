"""The mutable contents of an attribute's value: containers, arrays, closures and users' objects.

Objects of libraries are not looked into. Layers are looked at by themselves, and no call of a layer
depends on more of the others than their identity.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .call_signature import IdentityKey

# Larger ones are told by identity.
SMALL_ARRAY_BYTES = 2**18
# That are looked at in one attribute.
MOST_VALUES = 20_000
PLAIN = (bool, int, float, str, bytes, type(None))
_LIBRARIES = (
    "builtins", "collections", "functools", "jax", "keras", "keras_hub", "keras_recompute", "numpy",
    "tensorflow", "threading", "torch", "types", "weakref",
)  # fmt: skip
_OPAQUE = (type, types.ModuleType, keras.Operation, keras.Variable, tf.Module, tf.Tensor)


def mutable_contents(value: Any) -> list[Any]:
    """Return what can be changed in place in ``value``, itself included, each once."""
    if isinstance(value, PLAIN):
        return []
    inner = references(value)
    if not inner:
        return [] if inner is None else [value]
    immutable = (tuple, types.MethodType, functools.partial)
    return [each for each, _ in _walked(value) if not isinstance(each, immutable)]


def _walked(value: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each object in ``value`` that refers to others, and what it refers to."""
    waiting: deque[Any] = deque([value])
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST_VALUES:
        each = waiting.popleft()
        if id(each) in seen or isinstance(each, PLAIN):
            continue
        seen[id(each)] = each
        inner = references(each)
        if inner is not None:
            yield each, inner
            waiting.extend(inner)


def references(value: Any) -> list[Any] | None:
    """Return what ``value`` refers to and can be made to refer to otherwise; None if nothing."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, types.FunctionType):
        if is_of_library(value):
            return None
        cells = list(map(_held, value.__closure__ or ()))
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()] or None
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if type(value) is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    if type(value) is np.ndarray:
        return [] if value.nbytes <= SMALL_ARRAY_BYTES and not value.dtype.hasobject else None
    return list(_state(value).values()) if _is_of_user(type(value)) else None  # type: ignore[arg-type]


def snapshot(value: Any) -> Any:
    """Return a value that differs once ``value``, one of the ``mutable_contents``, was changed."""
    if isinstance(value, dict):
        return (*map(id, value.values()),)
    if isinstance(value, (list, set)):
        return (*map(id, value),)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return (*map(id, references(value) or ()),)


def state_key(value: Any) -> Hashable:
    """Return a key that is equal where ``value`` is the same and holds the same.

    Containers are equal by their contents, everything else by identity and contents.
    """
    if isinstance(value, PLAIN):
        return _leaf(value)
    inner = references(value)
    if not inner:
        return IdentityKey(value) if inner is None else (_own_form(value),)
    walked = list(_walked(value))
    numbers = {id(each): n for n, (each, _) in enumerate(walked)}
    forms = []
    for each, inner in walked:
        items = tuple(numbers[id(i)] if id(i) in numbers else _leaf(i) for i in inner)
        forms.append((_own_form(each), items))
    return tuple(forms)


def _leaf(value: Any) -> Hashable:
    if isinstance(value, PLAIN):
        return type(value), repr(value) if isinstance(value, float) else value
    return IdentityKey(value)


def _own_form(value: Any) -> Hashable:
    """Return the part of a key that does not depend on what ``value`` refers to."""
    for kind in (dict, list, tuple, set, types.MethodType, functools.partial):
        if isinstance(value, kind):
            return kind
    if isinstance(value, np.ndarray):
        return IdentityKey(value), value.dtype, value.shape, value.tobytes()
    return IdentityKey(value)


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    slots = (name for kind in type(value).__mro__ for name in _slots(kind))
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


@functools.lru_cache(maxsize=1024)
def _is_of_user(kind: type) -> bool:
    return not is_of_library(kind) and not issubclass(kind, _OPAQUE)


def is_of_library(value: Any) -> bool:
    """Whether a class or function was written in Python's own or another library."""
    return (value.__module__ or "").split(".")[0] in _LIBRARIES


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None
