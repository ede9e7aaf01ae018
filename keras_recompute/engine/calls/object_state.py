"""The state of objects that a call uses without being given it: attributes of layers and objects.

A Keras layer computes what its attributes say: whether it trains, its quantization, its LoRA
weights, its dropout rate. A program is traced for their current values and belongs to these: a
later call looks for the program of the values of then.

Every eager call compares them, so the comparison is cheap where nothing was set. It compares
identities, also inside containers, closures and objects of users' classes, and the contents of
small arrays. An attribute that a layer sets whenever it is traced, such as a count of its calls, is
left out.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.layers import CALL_SETTINGS, TRACKING_PREFIX, TRAINING_STATE, layers_in
from .call_signature import IdentityKey
from .object_contents import PLAIN, mutable_contents, references, snapshot, state_key
from .side_effects import closed_over_names

_WITHOUT_STATE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
# What our own attributes, and TensorFlow's notes of what an object holds, begin with.
_NOT_COUNTED = ("_keras_recompute", TRACKING_PREFIX)


def dependencies_of(function: Callable[..., Any], given: Iterable[Any]) -> tuple[Any, ...]:
    """Return the objects whose attributes a call of ``function`` uses, as far as can be seen.

    These are ``function`` itself or the object that it is a method of, the layers and tensors that
    it closes over or finds among its globals, and the objects among the arguments ``given``.
    """
    while isinstance(function, functools.partial):
        given = (*given, *function.args, *function.keywords.values())
        function = function.func
    owner = getattr(function, "__self__", None)
    found = [owner] if owner is not None else [] if inspect.isfunction(function) else [function]
    plain = getattr(function, "__func__", function)
    for _, value in closed_over_names(plain) if inspect.isfunction(plain) else ():
        values = (
            value
            if isinstance(value, (list, tuple))
            else value.values()
            if isinstance(value, dict)
            else (value,)
        )
        found += [each for each in values if isinstance(each, (keras.layers.Layer, tf.Tensor))]
    found += [
        each for each in given if hasattr(each, "__dict__") and not isinstance(each, _WITHOUT_STATE)
    ]
    return tuple(found)


class ObjectState:
    """The attributes of ``roots`` and of the layers in them.

    ``version`` is equal where the attributes are.
    """

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self._roots = roots
        self._versions: dict[Hashable, int] = {}
        self._set_by_calls: set[tuple[int, str]] = set()
        self._version = -1
        self._parts: list[_Part] = []

    def held(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield each object, and a name and value of an attribute on which a call depends."""
        for part in self._parts:
            for name, value in part.counted(frozenset()):
                yield part.owner, name, value

    def version(self) -> int:
        """Return a number that is the same whenever the attributes are the same, and only then."""
        if self._version < 0 or not all(part.is_unchanged() for part in self._parts):
            self._look()
        return self._version

    def version_after_trace(self) -> int:
        """Return the version after a trace that began when ``version`` was last called.

        Attributes that the trace set are ignored from now on.
        """
        for part in self._parts:
            self._set_by_calls.update((id(part.owner), name) for name in part.set_since())
        self._look()
        return self._version

    def _look(self) -> None:
        self._parts = list(map(_Part, stateful_objects(self._roots)))
        state: list[Hashable] = []
        for part in self._parts:
            state.append(IdentityKey(part.owner))
            counted = part.counted(self._set_by_calls)
            state.append(tuple((name, state_key(value)) for name, value in counted))
        self._version = self._versions.setdefault(tuple(state), len(self._versions))


class _Part:
    """The attributes of one object, as they were when this was made."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._now = vars(owner)
        self._before = dict(self._now)
        self._was_built = getattr(owner, "built", True)
        self._inside: list[
            tuple[str, Any]
        ] = []  # what can be changed in place, and in which attribute it is
        for name, value in self.counted(frozenset()):
            if type(value) not in PLAIN:
                self._inside += [(name, each) for each in mutable_contents(value)]
        # Kept, so that no other object gets the id of one of these.
        self._kept = [references(each) for _, each in self._inside]
        self._identities = self._look()

    def _look(self) -> list[Any]:
        return [(*map(id, self._now.values()),), *(snapshot(each) for _, each in self._inside)]

    def is_unchanged(self) -> bool:
        """Whether nothing was set since."""
        return self._look() == self._identities

    def set_since(self) -> Iterator[str]:
        """Yield the attributes that were set since; none of a layer that was built since."""
        if not self._was_built:
            return
        for name, value in self._now.items():
            if name not in self._before or self._before[name] is not value:
                yield name
        before = self._identities[1:]
        for (name, each), then in zip(self._inside, before):
            if snapshot(each) != then:
                yield name

    def counted(
        self, set_by_calls: set[tuple[int, str]] | frozenset[Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the attributes on which a call depends."""
        common = (
            _common(isinstance(self.owner, keras.Model))
            if isinstance(self.owner, keras.layers.Layer)
            else ()
        )
        for name, value in self._now.items():
            if (
                name in common
                or name.startswith(_NOT_COUNTED)
                or (id(self.owner), name) in set_by_calls
            ):
                continue
            yield name, value


def stateful_objects(roots: Iterable[Any]) -> Iterable[Any]:
    """Return the objects whose attributes count, each once.

    These are ``roots``, the layers in their attributes, and the layers in those.
    """
    return {
        id(owner): owner for root in roots for owner in _owners_in(root)
    }.values()  # variables have no hash


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
    """Return the attributes that every layer or model has and no call depends on."""
    names = frozenset(vars(keras.layers.Layer())) - CALL_SETTINGS
    return (
        names | (frozenset(vars(keras.Model())) - CALL_SETTINGS) | TRAINING_STATE
        if is_model
        else names
    )
