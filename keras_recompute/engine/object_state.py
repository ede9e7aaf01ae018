"""The attributes of the objects that a call uses: what it depends on without being given it.

A Keras layer computes what its attributes say: whether it trains, its quantization, its LoRA weights, the rate of a dropout.
A function is traced for them as they are, and belongs to them: a call finds the program of what the attributes are now.

They are looked at in every eager call. So a look costs little where nothing was set since the last one: it compares
identities only, also of what stands inside containers, closures and objects of a user's classes, and the contents of small
arrays. What a layer sets itself whenever it is traced, such as a count of its calls, does not count.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ..seams.keras.layers import CALL_SETTINGS, TRACKING_PREFIX, TRAINING_STATE, layers_in
from .call_signature import IdentityKey
from .object_contents import PLAIN, mutable_contents, references, snapshot, state_key
from .side_effects import closed_over_names

_WITHOUT_STATE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
# What our own attributes, and TensorFlow's notes of what an object holds, begin with.
_NOT_COUNTED = ("_keras_recompute", TRACKING_PREFIX)


def dependencies_of(function: Callable[..., Any], given: Iterable[Any]) -> tuple[Any, ...]:
    """Return the objects whose attributes a call of ``function`` uses, as far as that can be seen from outside.

    These are the object that it is, or is a method of, layers and tensors that it closes over or finds among its globals, and
    objects among the arguments ``given``.
    """
    while isinstance(function, functools.partial):
        given = (*given, *function.args, *function.keywords.values())
        function = function.func
    owner = getattr(function, "__self__", None)
    found = [owner] if owner is not None else [] if inspect.isfunction(function) else [function]
    plain = getattr(function, "__func__", function)
    for _, value in closed_over_names(plain) if inspect.isfunction(plain) else ():
        values = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else (value,)
        found += [each for each in values if isinstance(each, (keras.layers.Layer, tf.Tensor))]
    found += [each for each in given if hasattr(each, "__dict__") and not isinstance(each, _WITHOUT_STATE)]
    return tuple(found)


class ObjectState:
    """The attributes of ``roots``, and of the layers in them; ``version`` is equal where they are."""

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self._roots = roots
        self._versions: dict[Hashable, int] = {}
        self._set_by_calls: set[tuple[int, str]] = set()
        self._version = -1
        self._parts: list[_Part] = []

    def version(self) -> int:
        """Return a version that was returned before where the attributes are as they were then, and only there."""
        if self._version < 0 or not all(part.is_unchanged() for part in self._parts):
            self._look()
        return self._version

    def version_after_trace(self) -> int:
        """Return the version that they have now, after a trace that began when ``version`` was last asked for."""
        for part in self._parts:
            self._set_by_calls.update((id(part.owner), name) for name in part.set_since())
        self._look()
        return self._version

    def _look(self) -> None:
        self._parts = [_Part(owner) for owner in stateful_objects(self._roots)]
        state = tuple(
            (IdentityKey(part.owner), *((name, state_key(value)) for name, value in part.counted(self._set_by_calls)))
            for part in self._parts
        )
        self._version = self._versions.setdefault(state, len(self._versions))


class _Part:
    """The attributes of one object as they were when this was made."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._now = vars(owner)
        self._before = dict(self._now)
        self._was_built = getattr(owner, "built", True)
        self._inside: list[tuple[str, Any]] = []  # what can be changed in place, and in which attribute it is
        for name, value in self.counted(frozenset()):
            if type(value) not in PLAIN:
                self._inside += [(name, each) for each in mutable_contents(value)]
        self._kept = [references(each) for _, each in self._inside]  # so that no identity is used again
        self._identities = self._look()

    def _look(self) -> list[Any]:
        return [(*map(id, self._now.values()),), *(snapshot(each) for _, each in self._inside)]

    def is_unchanged(self) -> bool:
        """Whether nothing was set since."""
        return self._look() == self._identities

    def set_since(self) -> Iterator[str]:
        """Yield the attributes that were set since, but for those of a layer that was built since."""
        if not self._was_built:
            return
        for name, value in self._now.items():
            if name not in self._before or self._before[name] is not value:
                yield name
        before = self._identities[1:]
        for (name, each), then in zip(self._inside, before):
            if snapshot(each) != then:
                yield name

    def counted(self, set_by_calls: set[tuple[int, str]] | frozenset[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the attributes on which a call depends."""
        common = _common(isinstance(self.owner, keras.Model)) if isinstance(self.owner, keras.layers.Layer) else ()
        for name, value in self._now.items():
            if name in common or name.startswith(_NOT_COUNTED) or (id(self.owner), name) in set_by_calls:
                continue
            yield name, value


def stateful_objects(roots: Iterable[Any]) -> Iterable[Any]:
    """Return the objects whose attributes count, each once: ``roots``, the layers in their attributes, and those in layers."""
    return {id(owner): owner for root in roots for owner in _owners_in(root)}.values()  # variables have no hash


def _owners_in(root: Any) -> Iterator[Any]:
    if isinstance(root, keras.layers.Layer):
        yield from dict.fromkeys(layers_in(root))
    elif hasattr(root, "__dict__") and not isinstance(root, tf.Tensor):
        yield root
        for value in vars(root).values():
            if isinstance(value, keras.layers.Layer):
                yield from _owners_in(value)


@functools.cache
def _common(is_model: bool) -> frozenset[str]:
    """Return the names of what every layer, or every model, has and on which no call depends."""
    names = frozenset(vars(keras.layers.Layer())) - CALL_SETTINGS
    return names | (frozenset(vars(keras.Model())) - CALL_SETTINGS) | TRAINING_STATE if is_model else names
