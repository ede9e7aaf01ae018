"""What an inspected function is given and reads: its arguments with their names, and variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ..seams.keras.layers import backend_variable


@dataclass(frozen=True)
class Call:
    """A call of a function, in whose arguments tensors can be replaced.

    Attributes:
        name: The function's name.
        paths: The names of the tensors among its arguments, such as ``params[0]``.
        tensors: The tensors among its arguments. NumPy arrays are some; Python numbers are not.
    """

    name: str
    paths: tuple[str, ...]
    tensors: tuple[Any, ...]
    _function: Callable[..., Any]
    _leaves: tuple[Any, ...]
    _numbers: tuple[int, ...]
    _unflatten: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """Return the function's results for these ``tensors``."""
        leaves = list(self._leaves)
        for number, tensor in zip(self._numbers, tensors):
            leaves[number] = tensor
        args, kwargs = self._unflatten(leaves)
        return self._function(*args, **kwargs)


def call_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    flatten_with_path: Callable[[Any], tuple[list[tuple[str, Any]], Callable[..., Any]]],
) -> Call:
    """Return the call of ``function`` with these arguments.

    ``flatten_with_path`` returns the leaves of a nest of the backend, each with its path, and a
    function that puts leaves into such a nest.
    """
    names = _names_of_arguments(function, args, kwargs)
    leaves, paths, parts = [], [], []
    for name, value in zip(names, (*args, *kwargs.values())):
        found, pack = flatten_with_path(value)
        paths += [f"{name}{path}" for path, _ in found]
        leaves += [leaf for _, leaf in found]
        parts.append((len(found), pack))

    def unflatten(new: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values, start = [], 0
        for count, pack in parts:
            values.append(pack(new[start : start + count]))
            start += count
        return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :]))

    numbers = [number for number, leaf in enumerate(leaves) if _is_array(leaf)]
    named = getattr(function, "__name__", None) or getattr(function, "name", None)
    return Call(
        name=named or type(function).__name__,
        paths=tuple(paths[number] for number in numbers),
        tensors=tuple(keras.ops.convert_to_tensor(leaves[number]) for number in numbers),
        _function=function,
        _leaves=tuple(leaves),
        _numbers=tuple(numbers),
        _unflatten=unflatten,
    )


def _is_array(value: Any) -> bool:
    return keras.ops.is_tensor(value) or isinstance(value, (np.ndarray, np.generic))


def _names_of_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return the parameters that the arguments are given to, positional ones first."""
    called = function.call if isinstance(function, keras.layers.Layer) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # of functions written in C
        parameters = ()  # type: ignore[assignment]
    names, rest = [], "args"
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind == parameter.VAR_POSITIONAL:
            rest = parameter.name
    named = names[: len(args)]
    named += [f"{rest}[{number}]" for number in range(len(args) - len(named))]
    return [*named, *kwargs]


class ReadingScope(keras.StatelessScope):
    """A scope that lists the variables read in it, and keeps assignments from them.

    Attributes:
        read: The variables in the order of their first use.
    """

    def __init__(self, values: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__(
            collect_losses=True, initialize_variables=False, state_mapping=list(values)
        )
        self.read: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        # By identity, since a variable compares by its elements.
        self.read.setdefault(id(variable), variable)
        return super().get_current_value(variable)


def built(read: Sequence[Any]) -> bool:
    """Return whether all these variables have values; give values to those that have none.

    Layers that are called for the first time make variables. Keras initializes those of a scope
    when the outermost one ends.
    """
    if all(backend_variable(variable) is not None for variable in read):
        return True
    with keras.StatelessScope():
        pass
    return False
