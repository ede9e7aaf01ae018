"""Python side effects of a function while it is traced, as far as they can be seen.

The engine runs a function once per signature, in Python. What should happen at every call must be
done by TensorFlow. Two mistakes are noticed: a change of a variable, list, dict, set, iterator or
generator of random numbers that the function closes over or finds among its globals, and a tensor
leaked there, which has no value outside the traced function. Attributes of objects are another
matter (``object_snapshot``), and what functions called by this one do is not seen.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from ...errors import InvalidArgumentError
from ...keras_backend.python_generators import GENERATORS, comparable_state
from ...seams.tensorflow.tensors import is_eager
from ...user_code import warn_user

# Of what a trace changed, in warnings.
ONCE = "this happened now and will not happen at later calls, because"
_CONTAINERS = (list, dict, set)
_EMPTY = object()


class ClosureSnapshot:
    """The names that ``function`` closes over, and what they held when this was made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = _plain(function)
        self._before = {name: (value, _contents(value)) for name, value in self._held()}

    def check(self, graph: Any, *, name: str) -> None:
        """Compare with what they hold after ``function`` was traced into ``graph``.

        Raises InvalidArgumentError for a leaked tensor of ``graph``. Warns with RecomputeWarning of
        a change.
        """
        for variable, value in self._held():
            before, contents = self._before.get(variable, (_EMPTY, None))
            now = _contents(value)
            if value is before and now == contents:
                continue
            for leaf in tf.nest.flatten(list(value) if isinstance(value, set) else value):
                if isinstance(leaf, tf.Tensor) and not is_eager(leaf) and leaf.graph is graph:
                    raise InvalidArgumentError(
                        f"{name!r} stores the tensor {leaf.name!r} in {variable!r}, and it has no "
                        f"value outside of {name!r}, whose operations run as one program. Return "
                        "it."
                    )
            what = "sets" if value is not before else f"changes the {type(value).__name__}"
            warn_user(
                f"{name!r} {what} {variable!r}: {ONCE} Python runs a checkpointed function once "
                "per signature. Return the value, or keep it in a tf.Variable."
            )

    def _held(self) -> Iterable[tuple[str, Any]]:
        return () if self._function is None else closed_over_names(self._function)


def closed_over_names(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that a Python function closes over or finds among its globals.

    Each comes with its value.
    """
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _plain(function: Any) -> Any:
    """Return the Python function that runs when ``function`` is called, or None if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if inspect.isfunction(function) else None


def _contents(value: Any) -> Any:
    """Return what ``value`` contains, object by object, if it is a container of Python's.

    Of an iterator or generator it is where that stands.
    """
    if isinstance(value, GENERATORS):
        return comparable_state(value)
    if type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
        return operator.length_hint(value, -1)
    if type(value) not in _CONTAINERS:
        return None
    if isinstance(value, dict):
        return [(id(key), id(item)) for key, item in value.items()]
    return list(map(id, value))
