"""Containers of values: lists, dicts, sets, data classes and other objects, flattened and rebuilt.

The arguments and results of a function are trees of these, with tensors and other values as leaves.
Each kind reads the contents of a container (``parts``), makes another like it (``make``), and sets
the contents of an existing one (``fill``). Mutable containers are made in two steps, so that they
may contain themselves.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ...errors import InvalidArgumentError
from ...seams.tensorflow.tensors import is_trackable

# Objects of these packages are what they are: their attributes are no business of a caller's.
_LIBRARIES = frozenset(
    {"builtins", "keras", "keras_hub", "keras_recompute", "numpy", "tensorflow", "threading"}
)
_MAPPINGS: tuple[type, ...] = (collections.OrderedDict, collections.defaultdict, dict)
_NEVER_COPIED = ("__del__",)
_COPIED_OTHERWISE = ("__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__")


@dataclass(frozen=True)
class Kind:
    """One kind of container.

    ``parts(value)`` returns a hashable description of the children, and the children.
    ``fill(value, names, children)`` sets them, for a kind that ``is_mutable``. ``make(type, names,
    children)`` makes a container; a mutable one is given no children and filled later. ``step``
    writes the path to a child, such as ``[0]`` or ``.name``.
    """

    name: str
    is_mutable: bool
    parts: Callable[[Any], tuple[Hashable, list[Any]]]
    make: Callable[[type, Any, Sequence[Any]], Any]
    fill: Callable[[Any, Any, Sequence[Any]], None]
    step: Callable[[Any, int], str]


def kind_of(value: Any) -> Kind | None:
    """Return which kind of container ``value`` is, or None for a leaf."""
    found = _KINDS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, tuple):
        return NAMED_TUPLE if hasattr(value, "_fields") else TUPLE
    if isinstance(value, dict):
        return DICT
    if isinstance(value, list):
        return LIST
    if isinstance(value, collections.deque):
        return DEQUE
    if isinstance(value, Mapping):
        return MAPPING
    return OBJECT if has_own_attributes(value) else None


def has_own_attributes(value: Any) -> bool:
    """Whether ``value`` is an object of a user's class that consists of its attributes alone.

    It is no layer, no variable and no other object that TensorFlow tracks. Its class does not
    define how it is copied, nor what happens when it is deleted.
    """
    kind = type(value)
    if isinstance(value, (type, keras.KerasTensor)) or is_trackable(value):
        return False
    if kind is types.SimpleNamespace:
        return True
    if kind.__new__ is not object.__new__ or kind.__module__.partition(".")[0] in _LIBRARIES:
        return False
    if not (hasattr(value, "__dict__") or dataclasses.is_dataclass(value)):
        return False
    special = (
        _NEVER_COPIED if dataclasses.is_dataclass(value) else (*_NEVER_COPIED, *_COPIED_OTHERWISE)
    )
    return not any(name in vars(base) for base in kind.__mro__[:-1] for name in special)


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are set on an object itself, without the package's own."""
    for base in reversed(type(value).__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    for name, each in getattr(value, "__dict__", {}).items():
        if not name.startswith("_keras_recompute"):
            yield name, each


def _indexed(_: Any, number: int) -> str:
    return f"[{number}]"


def _keyed(names: Any, number: int) -> str:
    return f"[{names[0][number]!r}]"


def _attribute(names: Any, number: int) -> str:
    return f".{names[number]}"


def _refuse_change(value: Any, *_: Any) -> None:
    raise TypeError(f"a {type(value).__name__} cannot be changed")


def _make_list(kind: type, _: Any, __: Sequence[Any]) -> Any:
    return kind() if issubclass(kind, list) else []


def _fill_list(value: Any, _: Any, children: Sequence[Any]) -> None:
    value[:] = children


def _deque_parts(value: Any) -> tuple[Hashable, list[Any]]:
    return (value.maxlen, len(value)), list(value)


def _make_deque(kind: type, names: Any, _: Sequence[Any]) -> Any:
    return kind(maxlen=names[0])


def _fill_deque(value: Any, _: Any, children: Sequence[Any]) -> None:
    value.clear()
    value.extend(children)


def _dict_parts(value: Any) -> tuple[Hashable, list[Any]]:
    """Return the keys, attributes and default factory of a dict, and the values.

    An object of a derived class may have attributes beside its keys.
    """
    attributes = (
        dict(vars(value)) if type(value) not in _MAPPINGS and hasattr(value, "__dict__") else {}
    )
    factory = getattr(value, "default_factory", None)
    # Not by methods of a derived class, which may do more.
    if issubclass(type(value), dict):
        keys = tuple(dict.keys(value))
        items = list(dict.values(value))
    else:
        keys = tuple(value)
        items = list(map(value.__getitem__, keys))
    return (keys, tuple(attributes), factory), [*items, *attributes.values()]


def _make_dict(kind: type, names: Any, _: Sequence[Any]) -> Any:
    # TensorFlow's wrapper of a dict that is an attribute.
    if not issubclass(kind, dict):
        return {}
    new: Any = kind.__new__(kind)
    if names[2] is not None:
        new.default_factory = names[2]
    return new


def _fill_dict(value: Any, names: Any, children: Sequence[Any]) -> None:
    keys, attributes, _ = names
    # By the methods of dict: those of a derived class may refuse or do more.
    if issubclass(type(value), dict):
        base: Any = next(each for each in _MAPPINGS if isinstance(value, each))
        base.clear(value)
        for key, child in zip(keys, children):
            base.__setitem__(value, key, child)
    else:
        for key in set(value) - set(keys):
            del value[key]
        for key, child in zip(keys, children):
            value[key] = child
    for name, child in zip(attributes, children[len(keys) :]):
        object.__setattr__(value, name, child)


def _mapping_parts(value: Any) -> tuple[Hashable, list[Any]]:
    return (tuple(value), (), None), list(map(value.__getitem__, value))


def _make_mapping(kind: type, names: Any, children: Sequence[Any]) -> Any:
    try:
        return kind(dict(zip(names[0], children)))
    except TypeError as error:
        raise InvalidArgumentError(
            f"a {kind.__name__} cannot be made from a dict, and a checkpointed function can take "
            "and return only mappings that can: use a dict"
        ) from error


def _make_set(kind: type, _: Any, __: Sequence[Any]) -> Any:
    return kind()


def _fill_set(value: Any, _: Any, children: Sequence[Any]) -> None:
    value.clear()
    value.update(children)


def _object_parts(value: Any) -> tuple[Hashable, list[Any]]:
    found = dict(attributes_of(value))
    return tuple(found), list(found.values())


def _make_object(kind: type, _: Any, __: Sequence[Any]) -> Any:
    return kind() if kind is types.SimpleNamespace else object.__new__(kind)


def _fill_object(value: Any, names: Any, children: Sequence[Any]) -> None:
    for name in {name for name, _ in attributes_of(value)} - set(names):
        object.__delattr__(value, name)
    for name, child in zip(names, children):
        object.__setattr__(value, name, child)


def _count(value: Any) -> tuple[Hashable, list[Any]]:
    return len(value), list(value)


LIST = Kind("list", True, _count, _make_list, _fill_list, _indexed)
TUPLE = Kind(
    "tuple", False, _count, lambda kind, _, children: kind(children), _refuse_change, _indexed
)
NAMED_TUPLE = Kind(
    "named tuple",
    False,
    lambda value: (value._fields, list(value)),
    lambda kind, _, children: kind(*children),
    _refuse_change,
    _attribute,
)
DICT = Kind("dict", True, _dict_parts, _make_dict, _fill_dict, _keyed)
MAPPING = Kind("mapping", False, _mapping_parts, _make_mapping, _refuse_change, _keyed)
SET = Kind("set", True, _count, _make_set, _fill_set, _indexed)
DEQUE = Kind("deque", True, _deque_parts, _make_deque, _fill_deque, _indexed)
OBJECT = Kind("object", True, _object_parts, _make_object, _fill_object, _attribute)
_KINDS: dict[Any, Kind] = {
    list: LIST,
    tuple: TUPLE,
    dict: DICT,
    set: SET,
    collections.deque: DEQUE,
    types.MappingProxyType: MAPPING,
}
