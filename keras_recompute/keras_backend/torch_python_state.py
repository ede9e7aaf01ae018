"""Python's state that a replay on PyTorch must find: what a call may change besides tensors.

That are numbers and texts in attributes, closures and globals; lists, dicts, sets and small arrays;
and generators of random numbers. Objects of libraries are not looked into.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import torch

# Python's and NumPy's functions are methods of one generator each.
_FUNCTIONS: tuple[Any, ...] = (random.random, np.random.random)
_GLOBAL_GENERATORS = tuple(function.__self__ for function in _FUNCTIONS)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SMALL_BYTES = 2**18
_MOST_VALUES = 1000  # that are looked at in one call
_LIBRARIES = ("keras", "keras_hub", "keras_recompute", "numpy", "torch", "threading", "weakref")
_MODULES = (torch.nn.Module, keras.layers.Layer)
_OPAQUE = (type, types.ModuleType, torch.Tensor, keras.Variable, *_MODULES)
# Keras keeps these lists itself.
_OF_EVERY_LAYER = frozenset(vars(keras.layers.Layer()))


@dataclass(frozen=True)
class _Place:
    """Something that has a state: how it is read, and written if it differs."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


def python_state(
    layers: Iterable[Any], used: Iterable[Any]
) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], None]]:
    """Return functions that read and write the state of ``layers`` and of what else is ``used``.

    ``layers`` may be modules of PyTorch; ``used`` are functions, arguments and other values.
    """
    walk, places = _Walk(), list[_Place]()
    # A compiled program runs no Python code again.
    if not torch.compiler.is_compiling():
        for layer in layers:
            places += walk.of_layer(layer)
        for value in (*_GLOBAL_GENERATORS, *used):
            places += walk.of_value(value)

    def read() -> list[Any]:
        return [place.read() for place in places]

    def write(states: Sequence[Any]) -> None:
        for place, state in zip(places, states):
            place.write(state)

    return read, write


class _Walk:
    """Finds places, each once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def of_layer(self, layer: Any) -> Iterator[_Place]:
        """Yield the places of a layer or module, of which those inside are given too."""
        yield _attributes(layer)
        # Layers of Keras keep what changes in variables.
        if type(layer).__module__.partition(".")[0] not in _LIBRARIES:
            for name, value in vars(layer).items():
                if name not in _OF_EVERY_LAYER:
                    yield from self.of_value(value)

    def of_value(self, value: Any) -> Iterator[_Place]:
        """Yield the places of any other value, and of what it refers to."""
        if isinstance(value, (*_PLAIN, *_OPAQUE)) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST_VALUES:
            return
        self._seen[id(value)] = value  # kept, so that no other value gets its id
        place = _generator(value) or _container(value)
        if place is not None:
            yield place
        for inner in self._inside(value):
            if isinstance(inner, _Place):
                yield inner
            else:
                yield from self.of_value(inner)

    def _inside(self, value: Any) -> Iterable[Any]:
        if isinstance(value, types.FunctionType):
            return _used_by(value)
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, *value.args, *value.keywords.values()
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            # To look at each element of a data set would take longer than the call.
            if len(value) > _MOST_VALUES:
                return ()
            return list(value.values() if isinstance(value, dict) else value)
        is_of_library = type(value).__module__.partition(".")[0] in (*_LIBRARIES, "builtins")
        if is_of_library or not hasattr(value, "__dict__"):
            return ()
        return _attributes(value), *vars(value).values()


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function closes over, and the globals that it names, plain ones as places."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield _cell(cell) if isinstance(value, _PLAIN) else value
    named = function.__globals__
    for name in function.__code__.co_names:
        if name in named:
            value = named[name]
            yield _item(named, name) if isinstance(value, _PLAIN) else value


def _attributes(owner: Any) -> _Place:
    """Return the plain attributes of ``owner``, not set by ``setattr``, by which Keras tracks."""

    def read() -> dict[str, Any]:
        return {name: each for name, each in vars(owner).items() if isinstance(each, _PLAIN)}

    return _Place(read, lambda state: vars(owner).update(state))


def _cell(cell: Any) -> _Place:
    def write(value: Any) -> None:
        cell.cell_contents = value

    return _Place(lambda: cell.cell_contents, write)


def _item(named: dict[str, Any], name: str) -> _Place:
    return _Place(lambda: named[name], lambda value: named.__setitem__(name, value))


def _generator(value: Any) -> _Place | None:
    if isinstance(value, random.Random):
        return _Place(value.getstate, value.setstate)
    if isinstance(value, (torch.Generator, np.random.RandomState)):
        return _Place(value.get_state, value.set_state)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return _Place(lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _container(value: Any) -> _Place | None:
    if isinstance(value, np.ndarray) and value.nbytes <= _SMALL_BYTES and value.flags.writeable:
        return _Place(value.copy, lambda state: value.__setitem__(..., state))
    if isinstance(value, (list, dict, set)) and len(value) <= _MOST_VALUES:
        kind = next(kind for kind in (list, dict, set) if isinstance(value, kind))
        return _Place(functools.partial(kind, value), functools.partial(_refill, value))
    return None


def _refill(container: Any, contents: Any) -> None:
    """Give ``container`` the contents that it had, if they are others now."""
    if isinstance(container, list):
        # By identity: elements may be tensors, which have no truth as a whole.
        if list(map(id, container)) != list(map(id, contents)):
            container[:] = contents
    elif isinstance(container, dict):
        if _ids(container) != _ids(contents):
            container.clear()
            container.update(contents)
    elif container != contents:
        container.clear()
        container.update(contents)


def _ids(named: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(key, id(value)) for key, value in named.items()]
