"""Which attributes the Python code of a layer's call reads and sets, as far as the code names them.

Most of what Keras keeps in a layer does not change a call: its name, its path, the initializers of
weights that exist. A user's ``call`` may still read these. So its code is searched for the names in
it, and so is the code of the methods, properties and functions that it names. Keras's own layers
read none of them.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...user_code import KNOWN_PACKAGES

_LIBRARIES = (*KNOWN_PACKAGES, "tensorflow", "numpy", "builtins")
_ENTRIES = ("__call__", "call", "quantized_call", "compute_mask", "stateless_call")
_WRAPPED_IN: dict[type, str] = {
    property: "fget",
    functools.cached_property: "func",
    functools.partial: "func",
    staticmethod: "__func__",
    classmethod: "__func__",
    types.MethodType: "__func__",
}
_READ_ALL = frozenset({"vars", "__dict__", "get_config", "attrgetter"})


@dataclass(frozen=True)
class CallCode:
    """What code names: attributes that it reads, and attributes that it sets and never reads.

    ``rebinds`` says whether it assigns to a variable of a function or module around it. Then two
    calls of the same function can differ.
    """

    names: frozenset[str] = frozenset()
    only_set: frozenset[str] = frozenset()
    rebinds: bool = False

    def reads(self, attribute: str) -> bool:
        """Whether the attribute may be read, directly or by a property without the underscore."""
        is_named = attribute in self.names or attribute.lstrip("_") in self.names
        return is_named or not self.names.isdisjoint(_READ_ALL)


def is_of_known_package(kind: Any) -> bool:
    """Whether a class or function is Keras's, KerasHub's or ours: it does what it holds."""
    return _package(kind) in KNOWN_PACKAGES


def call_code(operations: Iterable[Any]) -> CallCode:
    """Return what calls of ``operations`` name in their code and in functions that they hold."""
    kinds: set[type] = set()
    own: list[types.FunctionType] = []
    for operation in operations:
        kinds.update(type(operation).__mro__)
        own += _own_functions(operation)
    foreign = frozenset(kind for kind in kinds if _package(kind) not in _LIBRARIES)
    return _reached(own, foreign) if own else _of_classes(foreign)


@functools.lru_cache(maxsize=256)
def _of_classes(kinds: frozenset[type]) -> CallCode:
    return _reached([], kinds)


def _own_functions(operation: Any) -> list[types.FunctionType]:
    """Return the Python functions among the attributes of one object, such as another ``call``."""
    # Which Keras sets in every layer.
    wrappers = ("build", "quantize")
    found: list[types.FunctionType] = []
    for name, value in vars(operation).items():
        if name not in wrappers:
            found += _functions_in(value)
    return found


def _reached(start: Iterable[types.FunctionType], kinds: frozenset[type]) -> CallCode:
    members = _members(kinds)
    waiting = list(start)
    for name in _ENTRIES:
        waiting += members.get(name, ())
    seen: set[types.CodeType] = set()
    read: set[str] = set()
    stored: set[str] = set()
    rebinds = False
    while waiting:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        found = _named(function.__code__)
        read |= found.read
        stored |= found.stored
        rebinds |= found.rebinds
        for name in found.read:
            waiting += members.get(name, ())
            waiting += _functions_in(function.__globals__.get(name))
        for cell in function.__closure__ or ():
            waiting += _functions_in(_contents_of(cell))
    return CallCode(frozenset(read), frozenset(stored - read), rebinds)


def _members(kinds: Iterable[type]) -> Mapping[str, list[types.FunctionType]]:
    members: dict[str, list[types.FunctionType]] = {}
    for kind in kinds:
        for name, value in vars(kind).items():
            members.setdefault(name, []).extend(_functions_in(value))
    return members


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the user's functions that run when ``value`` is called, or read as an attribute."""
    kind = type(value)
    while kind in _WRAPPED_IN:
        value = getattr(value, _WRAPPED_IN[kind])
        kind = type(value)
    if _package(kind) == "tensorflow":  # a tf.function
        value = getattr(value, "python_function", None)
    if not isinstance(value, types.FunctionType):
        return []
    inner = _functions_in(getattr(value, "__wrapped__", None))
    package = (value.__module__ or "").split(".")[0]
    return inner if package in _LIBRARIES else [value, *inner]


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


@dataclass(frozen=True)
class _Named:
    read: frozenset[str]
    stored: frozenset[str]
    rebinds: bool


@functools.lru_cache(maxsize=4096)
def _named(code: types.CodeType) -> _Named:
    """Return the names in ``code`` and the functions written inside it."""
    read: set[str] = set()
    stored: set[str] = set()
    rebinds = False
    for each in _with_inner(code):
        # A string may be the name that ``getattr`` is given.
        read.update(text for text in each.co_consts if isinstance(text, str))
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
                stored.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                rebinds = True
            elif instruction.opcode in dis.hasname:
                read.add(str(instruction.argval))
            elif instruction.opname == "STORE_DEREF":
                rebinds |= each is code and instruction.argval in code.co_freevars
    return _Named(frozenset(read), frozenset(stored), rebinds)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _package(kind: Any) -> str:
    return (kind.__module__ or "").split(".")[0]
