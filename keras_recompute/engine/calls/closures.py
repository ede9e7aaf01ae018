"""The identity of functions that are made at each call: closures, lambdas, partials, methods.

A program is found by what such a function consists of: its code, and the values that it captures or
finds among its globals. Plain values are compared by value, all others by identity. Captured
tensors are fed to the program like arguments, since they differ from call to call. The object of a
method is an argument of its function, and so is what a ``functools.partial`` holds.

Programs are kept with the captured objects, and freed with them.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.layers import mask_of
from ...seams.tensorflow.tensors import is_trackable
from ...user_code import warn_user
from .call_signature import IdentityKey, is_known_here, static_key
from .containers import attributes_of, has_own_attributes
from .program_cache import ProgramCache, cache_for

_ATTRIBUTE = "_keras_recompute_closures"
# Things that an object holds which is looked at in every call.
_SMALL = 256
# Of lists and dicts that are compared by what they hold.
_DEPTH = 3
# Traces of one code after which it is said why.
_OFTEN = 8
_EMPTY = object()
_lock = threading.Lock()


class _ByCode(dict[types.CodeType, ProgramCache]):
    """The program caches of functions by their code, kept with an object.

    A copy of it starts empty.
    """

    def __reduce__(self) -> Any:
        return _ByCode, ()


_programs: weakref.WeakKeyDictionary[types.CodeType, ProgramCache] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[types.CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()
_traced: weakref.WeakKeyDictionary[types.CodeType, dict[Any, tuple[int, dict[str, int]]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class Callee:
    """A function and its arguments, with the arguments that partials and methods add.

    ``tensors`` are captured tensors that a program is fed. ``bound_objects`` are the objects of
    methods, which became arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: tuple[tf.Tensor, ...]
    bound_objects: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Callee:
        """Return the callee of ``function(*args, **kwargs)``."""
        kwargs, bound_objects = kwargs or {}, []
        while True:
            if type(function) is functools.partial:
                args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
                function = function.func
                continue
            owner, plain = _method_of(function)
            if owner is None:
                break
            bound_objects.append(owner)
            function, args = plain, (owner, *args)
        return cls(function, args, kwargs, tuple(_tensors(function, set())), tuple(bound_objects))

    def parts(self, changed: frozenset[str]) -> dict[str, Any]:
        """Return what identifies the function, by the names of what it captures.

        Names in ``changed``, which calls were seen to change, are compared by identity.
        """
        if not inspect.isfunction(self.function):
            return {"": IdentityKey(self.function)}
        bare = _bare(self.function)
        if tf.executing_eagerly() and isinstance(bare, tuple):
            # Programs are kept by the code, which they would keep alive.
            bare = bare[1:]
        return {"": bare, **dict(_parts(self.function, changed, set()))}

    def bind(self, tensors: Sequence[tf.Tensor]) -> Callable[..., Any]:
        """Return the function with other ``tensors`` in place of the captured ones."""
        return _rebuilt(self.function, iter(tensors), {}) if self.tensors else self.function

    def cache(self, otherwise: Any) -> ProgramCache:
        """Return the programs of this function, or of ``otherwise`` if it can keep none."""
        if not tf.executing_eagerly() or not inspect.isfunction(self.function):
            return cache_for(self.function, otherwise)
        values = (*self.bound_objects, *_captured(self.function))
        holders = itertools.chain.from_iterable(_holders(value, _DEPTH) for value in values)
        anchor = (
            self.function if isinstance(_bare(self.function), IdentityKey) else next(holders, None)
        )
        with _lock:
            by_code: Any = (
                _programs if anchor is None else vars(anchor).setdefault(_ATTRIBUTE, _ByCode())
            )
            code = self.function.__code__
            if code not in by_code:
                by_code[code] = ProgramCache()
            return by_code[code]

    def note_trace(self, kind: Any, parts: Mapping[str, Any], name: str) -> None:
        """Warn if the function is traced again and again because what it captures changes.

        ``kind`` says which calls are alike. Only eager calls count: in a graph each call is written
        once, as of one closure for each of many blocks.
        """
        if not inspect.isfunction(self.function) or not tf.executing_eagerly():
            return
        now = {each: hash(part) for each, part in parts.items() if each}
        with _lock:
            known = _traced.setdefault(self.function.__code__, {})
            count, before = known.get(hash(kind), (0, now))
            others = [each for each in now if before.get(each) != now[each]]
            known[hash(kind)] = count + bool(others), now
            if len(known) > _SMALL:
                known.clear()
        if others and count + 1 == _OFTEN:
            values = dict((*_globals(self.function), *_named(self.function)))
            found = values.get(others[0])
            what = (
                f"the {type(found).__name__} {found!r:.60}"
                if static_key(found) != IdentityKey(found)
                else type(found).__name__
            )
            warn_user(
                f"{name!r} is created again for each call and was traced {_OFTEN + 1} times, "
                f"because its captured {others[0]!r} differs each time (now {what}). Create that, "
                "or the function, once. Pass what changes as an argument, and numbers as tensors."
            )


def _method_of(function: Any) -> tuple[Any, Any]:
    """Return the object and the function of a method, or of an object with ``__call__``.

    Returns two Nones for anything else.
    """
    owner, plain = (
        function,
        next(
            (vars(base)["__call__"] for base in type(function).__mro__ if "__call__" in vars(base)),
            None,
        ),
    )
    if inspect.ismethod(function):
        owner, plain = function.__self__, function.__func__
    if not inspect.isfunction(plain) or not has_own_attributes(owner):
        return None, None
    held = sum(
        len(v) if isinstance(v, (list, tuple, dict, set)) else 1 for _, v in attributes_of(owner)
    )
    return (owner, plain) if held <= _SMALL else (None, None)


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what ``function`` captures by name: variables and defaults of parameters."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            yield name, _EMPTY
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"default {number}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"default {name}", value


def _globals(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the global names that ``function`` reads and their values.

    Functions of other modules are left out.
    """
    held = function.__globals__
    for name in _global_names(function.__code__):
        value = held.get(name, _EMPTY)
        if value is _EMPTY or isinstance(value, types.ModuleType):
            continue
        if not inspect.isfunction(value) or value.__globals__ is held:
            yield name, value


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    if code not in _names:
        _names[code] = tuple(_find_global_names(code))
    return _names[code]


def _find_global_names(code: types.CodeType) -> Iterator[str]:
    names = [
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    yield from dict.fromkeys(
        [*names, *(name for each in inner for name in _find_global_names(each))]
    )


def _captured(function: Any, seen: set[int] | None = None) -> Iterator[Any]:
    seen = set() if seen is None else seen
    if id(function) in seen:
        return
    seen.add(id(function))
    for _, value in (*_named(function), *_globals(function)):
        if inspect.isfunction(value):
            yield from _captured(value, seen)
        else:
            yield value


def _is_fed(value: Any) -> bool:
    if not isinstance(value, tf.Tensor) or value.dtype in (tf.resource, tf.variant):
        return False
    return mask_of(value) is None and is_known_here(value)


def _tensors(function: Any, seen: set[int]) -> Iterator[tf.Tensor]:
    if not inspect.isfunction(function) or id(function) in seen:
        return
    seen.add(id(function))
    for _, value in _named(function):
        if _is_fed(value):
            yield value
        else:
            yield from _tensors(value, seen)


def _rebuilt(function: Any, tensors: Iterator[tf.Tensor], made: dict[int, Any]) -> Any:
    """Return ``function`` with ``tensors`` in place of the tensors that ``_tensors`` yields."""
    if id(function) in made:
        return made[id(function)]
    new = made[id(function)] = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        None,
        _cells(function, made, tensors),
    )
    defaults = tuple(_put(value, tensors, made) for value in function.__defaults__ or ())
    new.__defaults__ = defaults or None
    new.__kwdefaults__ = {
        n: _put(value, tensors, made) for n, value in (function.__kwdefaults__ or {}).items()
    } or None
    new.__dict__.update(function.__dict__)
    new.__qualname__, new.__module__, new.__doc__ = (
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    return new


def _cells(function: Any, made: dict[int, Any], tensors: Iterator[tf.Tensor]) -> tuple[Any, ...]:
    """Return the cells of ``function``.

    A cell with the same content stays the same object, so that assignments to it are seen.
    """
    found = []
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            found.append(cell)
            continue
        new = _put(value, tensors, made)
        found.append(cell if new is value else types.CellType(new))
    return tuple(found)


def _put(value: Any, tensors: Iterator[tf.Tensor], made: dict[int, Any]) -> Any:
    if _is_fed(value):
        return next(tensors)
    if (
        inspect.isfunction(value)
        and id(value) not in made
        and any(True for _ in _tensors(value, set(made)))
    ):
        return _rebuilt(value, tensors, made)
    return value


def _bare(function: Any) -> Any:
    """Return a key that is equal for functions of one code and module.

    It is unique for a function that has attributes.
    """
    if set(function.__dict__) - {"__wrapped__"} - _ours(function):
        return IdentityKey(function)
    return function.__code__, IdentityKey(function.__globals__)


def _ours(function: Any) -> set[str]:
    return {name for name in function.__dict__ if name.startswith(("_keras_recompute", "ag_"))}


def _parts(function: Any, changed: frozenset[str], seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    captured = [(name, value, _is_fed(value)) for name, value in _named(function)]
    for name, value, is_fed in (
        *captured,
        *((name, value, False) for name, value in _globals(function)),
    ):
        if inspect.isfunction(value):
            yield name, _bare(value)
            yield from ((f"{name}.{inner}", part) for inner, part in _parts(value, changed, seen))
        elif name in changed:
            yield name, IdentityKey(value) if isinstance(value, (list, dict, set)) else "changed"
        else:
            yield name, "tensor" if is_fed else _part(value, _DEPTH)


def _part(value: Any, depth: int) -> Any:
    if depth and type(value) in (list, tuple, set, dict) and len(value) <= _SMALL:
        values = value.items() if isinstance(value, dict) else value
        return type(value), tuple(
            _part(each, depth if isinstance(value, dict) else depth - 1) for each in values
        )
    return static_key(value)


def _holders(value: Any, depth: int) -> Iterator[Any]:
    """Yield the objects in ``value`` that may hold variables and can keep programs."""
    if isinstance(value, (list, tuple)):
        for each in value if depth else ():
            yield from _holders(each, depth - 1)
    elif isinstance(value, dict):
        yield from _holders([*value.values()], depth)
    elif isinstance(value, (keras.Variable, keras.Operation)) or is_trackable(value):
        if hasattr(value, "__dict__"):
            yield value
    elif has_own_attributes(value) and depth:
        for _, each in attributes_of(value):
            yield from _holders(each, depth - 1)
