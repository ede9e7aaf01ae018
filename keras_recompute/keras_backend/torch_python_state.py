"""Python's state that a replay on PyTorch must find: what a call may change besides tensors.

These are numbers and texts in attributes, closures and globals; lists, dicts, sets, deques and
small arrays; and generators of random numbers. They are looked for in layers and other objects, in
the methods of their classes, and in functions that are given to layers of Keras. Objects of
libraries are not searched. How far an iterator is, and what a tensor holds, cannot be put back: a
replay that changes one of these raises an error.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import torch

from ..errors import ReplayError
from ..seams.torch.operations import version_of
from ..user_code import warn_user
from .python_generators import GENERATORS, GLOBAL_GENERATORS, set_state, state_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SMALL_BYTES = 2**18
_MOST_VALUES = 1000  # that are looked at in one call
_LIBRARIES = frozenset(
    ("keras", "keras_hub", "keras_recompute", "numpy", "torch", "threading", "weakref")
)
_CODE_OF_LIBRARIES = _LIBRARIES | sys.stdlib_module_names
_MODULES = (torch.nn.Module, keras.layers.Layer)
_OPAQUE = (types.ModuleType, keras.Variable, *_MODULES)
# Keras keeps these lists itself.
_OF_EVERY_LAYER = frozenset(vars(keras.layers.Layer()))
# Of a class, what a call of a layer does not run.
_NOT_IN_A_CALL = frozenset(("__init__", "__doc__", "__module__", "build", "get_config"))


@dataclass(frozen=True)
class _Place:
    """Something that has a state: how it is read, and written if it differs."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


@dataclass(frozen=True)
class _Watched:
    """Something whose state cannot be put back: how to see that it changed, and what it is."""

    progress: Callable[[], Any]
    what: str


class PythonState:
    """The state of functions, arguments and other values that are ``used``, from when it is made.

    Attributes:
        before: The state; that of a layer from when it was added.
    """

    def __init__(self, used: Iterable[Any]) -> None:
        self.before: list[Any] = []
        self._places: list[_Place] = []
        self._watched: list[_Watched] = []
        self._walk = _Walk()
        for value in (*GLOBAL_GENERATORS.values(), *used):
            self._add(self._walk.of_value(value))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that were found."""
        return self._walk.tensors

    def add_layer(self, layer: Any) -> None:
        """Add a layer or module, without those inside."""
        self._add(self._walk.of_layer(layer))

    def _add(self, found: Iterable[_Place | _Watched]) -> None:
        # A compiled program runs no Python code again.
        if torch.compiler.is_compiling():
            return
        was_incomplete = self._walk.is_incomplete
        for each in found:
            if isinstance(each, _Watched):
                self._watched.append(each)
            else:
                self._places.append(each)
                self.before.append(each.read())
        if self._walk.is_incomplete and not was_incomplete:
            warn_user(
                f"what is recomputed refers to more than {_MOST_VALUES} objects, and only that "
                "many are searched for state. If a call changes another one, a replay changes it "
                "again, and gradients are wrong. Refer only to what the call needs, or keep its "
                "state in variables of layers"
            )

    def read(self) -> list[Any]:
        """Return the state as it is now."""
        return [place.read() for place in self._places]

    def write(self, states: Sequence[Any]) -> None:
        """Put back ``before``, or what ``read`` returned."""
        for place, state in zip(self._places, states):
            place.write(state)

    def progress(self) -> list[Any]:
        """Return how far everything is that cannot be put back."""
        return [each.progress() for each in self._watched]

    def require_progress(self, before: Sequence[Any]) -> None:
        """Raise ReplayError if something that cannot be put back is not as ``before``."""
        for each, old, new in zip(self._watched, before, self.progress()):
            if old != new:
                raise ReplayError(
                    f"a replay changed {each.what}, as the forward pass did before, so it computed "
                    "with other values and gradients would be wrong. Keep such state in a number, "
                    "or in a buffer or variable of a layer. Or read it outside of what is "
                    "recomputed, and pass it in as an argument"
                )


class _Walk:
    """Finds places, and what is watched, each once.

    Attributes:
        is_incomplete: Whether there were more values than are looked at.
        tensors: Those among the values.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._classes: set[type] = set()
        self.is_incomplete = False
        self.tensors: list[torch.Tensor] = []

    def of_layer(self, layer: Any) -> Iterator[_Place | _Watched]:
        """Yield what there is of a layer or module, of which those inside are given too."""
        kind = type(layer)
        is_own = not _is_in(kind, _LIBRARIES)
        # Layers of Keras keep what changes in variables. They call what they are given.
        if not is_without_state(layer):
            yield _attributes(layer)
        if is_own:
            yield from self._of_class(kind)
        for name, value in vars(layer).items():
            if name not in _OF_EVERY_LAYER and (is_own or callable(value)):
                yield from self.of_value(value)

    def of_value(self, value: Any) -> Iterator[_Place | _Watched]:
        """Yield what there is of any other value, and of what it refers to."""
        if isinstance(value, (*_PLAIN, *_OPAQUE)) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST_VALUES:
            self.is_incomplete = True
            return
        self._seen[id(value)] = value  # kept, so that no other value gets its id
        if isinstance(value, type):
            yield from self._of_class(value)
            return
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        found = _generator(value) or _container(value) or _watched(value)
        if found is not None:
            yield found
        for inner in self._inside(value):
            if isinstance(inner, _Place):
                yield inner
            else:
                yield from self.of_value(inner)

    def _of_class(self, kind: type) -> Iterator[_Place | _Watched]:
        """Yield what there is of a class: its attributes, and what its methods use."""
        for each in kind.__mro__:
            if each in self._classes or _is_in(each, _CODE_OF_LIBRARIES):
                continue
            self._classes.add(each)
            yield _class_attributes(each)
            for name, value in vars(each).items():
                if name not in _NOT_IN_A_CALL:
                    yield from self.of_value(_function_of(value))

    def _inside(self, value: Any) -> Iterable[Any]:
        if isinstance(value, types.FunctionType):
            return () if _is_in(value, _CODE_OF_LIBRARIES) else _used_by(value)
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, *value.args, *value.keywords.values()
        if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            # To look at each element of a data set would take longer than the call.
            if len(value) > _MOST_VALUES:
                return ()
            return list(value.values() if isinstance(value, dict) else value)
        kind = type(value)
        if _is_in(kind, _LIBRARIES) or kind.__module__ == "builtins":
            return ()
        return _attributes(value), kind, *_attributes_of(value).values()


def is_without_state(layer: Any) -> bool:
    """Whether a call of ``layer`` changes nothing but variables, as one of Keras's own."""
    return type(layer).__module__.startswith("keras.src.layers.")


def _is_in(value: Any, libraries: Set[str]) -> bool:
    """Whether a class or function was written in one of the ``libraries``."""
    return (value.__module__ or "").partition(".")[0] in libraries


def _is_put_back(value: Any) -> bool:
    """Whether what refers to ``value`` is made to do so again; a large tensor may be freed."""
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.nbytes <= _SMALL_BYTES
    return isinstance(value, _PLAIN)


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function closes over, and the globals that it names, plain ones as places."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield _attributes(function)
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if _is_put_back(value):
            yield _cell(cell)
        yield value
    named = function.__globals__
    for name in _names_in(function.__code__):
        if name in named:
            value = named[name]
            if _is_put_back(value):
                yield _item(named, name)
            yield value


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals and attributes that ``code`` names, functions inside it too."""
    inside = [_names_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return tuple(dict.fromkeys(itertools.chain(code.co_names, *inside)))


def _function_of(value: Any) -> Any:
    """Return the function that is behind an entry of a class."""
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", value)


def _attributes_of(owner: Any) -> dict[str, Any]:
    found = dict(getattr(owner, "__dict__", ()))
    for name in _slots(type(owner).__mro__):
        if hasattr(owner, name):
            found[name] = getattr(owner, name)
    return found


@functools.lru_cache(maxsize=1024)
def _slots(classes: tuple[type, ...]) -> tuple[str, ...]:
    """Return the names of attributes that instances of ``classes`` keep outside a ``__dict__``."""
    found: list[str] = []
    for each in classes:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def _attributes(owner: Any) -> _Place:
    """Return the plain attributes of ``owner``, not set by its ``setattr``: Keras tracks by it."""

    def read() -> dict[str, Any]:
        return {name: v for name, v in _attributes_of(owner).items() if _is_put_back(v)}

    def write(state: dict[str, Any]) -> None:
        now = read()
        for name in now.keys() - state.keys():
            object.__delattr__(owner, name)
        for name, value in state.items():
            if name not in now or now[name] is not value:
                object.__setattr__(owner, name, value)

    return _Place(read, write)


def _class_attributes(kind: type) -> _Place:
    def read() -> dict[str, Any]:
        return {name: value for name, value in vars(kind).items() if _is_put_back(value)}

    def write(state: dict[str, Any]) -> None:
        for name, value in state.items():
            if vars(kind).get(name) is not value:
                setattr(kind, name, value)

    return _Place(read, write)


def _cell(cell: Any) -> _Place:
    def write(value: Any) -> None:
        cell.cell_contents = value

    return _Place(lambda: cell.cell_contents, write)


def _item(named: dict[str, Any], name: str) -> _Place:
    return _Place(lambda: named[name], lambda value: named.__setitem__(name, value))


def _generator(value: Any) -> _Place | None:
    if isinstance(value, torch.Generator):
        return _Place(value.get_state, value.set_state)
    if isinstance(value, GENERATORS):
        return _Place(functools.partial(state_of, value), functools.partial(set_state, value))
    return None


def _container(value: Any) -> _Place | None:
    if isinstance(value, np.ndarray) and value.nbytes <= _SMALL_BYTES and value.flags.writeable:
        return _Place(value.copy, lambda state: value.__setitem__(..., state))
    if isinstance(value, (list, dict, set, deque)) and len(value) <= _MOST_VALUES:
        kind = next(kind for kind in (list, dict, set, deque) if isinstance(value, kind))
        return _Place(functools.partial(kind, value), functools.partial(_refill, value))
    return None


def _refill(container: Any, contents: Any) -> None:
    """Give ``container`` the contents that it had, if they are others now."""
    if isinstance(container, (list, deque)):
        # By identity: elements may be tensors, which have no truth as a whole.
        if list(map(id, container)) != list(map(id, contents)):
            container.clear()
            container.extend(contents)
    elif isinstance(container, dict):
        if _ids(container) != _ids(contents):
            container.clear()
            container.update(contents)
    elif container != contents:
        container.clear()
        container.update(contents)


def _ids(named: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(key, id(value)) for key, value in named.items()]


def _watched(value: Any) -> _Watched | None:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            return None
        kind = str(value.dtype).removeprefix("torch.")
        what = f"a tensor {kind}{list(value.shape)} in place"
        return _Watched(functools.partial(version_of, value), what)
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return _Watched(functools.partial(_how_far, value), f"an iterator ({type(value).__name__})")
    return None


def _how_far(iterator: Any) -> Any:
    """Return what is another value once ``iterator`` has been asked for more."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        names = inspect.getgeneratorlocals(iterator)
        return frame and (frame.f_lasti, [(name, id(value)) for name, value in names.items()])
    referred = gc.get_referents(iterator)
    tuples = [each for each in referred if type(each) is tuple]  # a map has its iterators in one
    inside = [each for each in itertools.chain(referred, *tuples) if isinstance(each, Iterator)]
    counted = repr(iterator) if isinstance(iterator, (itertools.count, itertools.repeat)) else ""
    return counted, operator.length_hint(iterator, -1), list(map(_how_far, inside))
