"""What the objects that an eager call uses hold, to see whether a trace changes it.

Plain Keras runs the Python of an eager call each time. A section or checkpointed function is traced
once per signature, so random numbers that it draws from Python or NumPy, and what its layers count
or collect, stay as they were in that trace. A warning names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...keras_backend.python_generators import GENERATORS, GLOBAL_GENERATORS, comparable_state
from ...seams.keras.layers import global_seed_generator
from ...user_code import warn_user
from .object_contents import is_of_library
from .side_effects import ONCE

_MOST = 3  # changes that a warning names


class ObjectSnapshot:
    """Generators, numbers and containers of objects, and the global generators, before a trace.

    ``held`` yields what the objects hold at that moment: an object, the name of an attribute and
    its value.
    """

    def __init__(self, held: Callable[[], Iterable[tuple[Any, str, Any]]]) -> None:
        self._held = held
        self._generators = dict(GLOBAL_GENERATORS)
        for owner, name, value in held():
            if isinstance(value, GENERATORS):
                self._generators[_named(owner, name)] = value
        self._states = list(map(comparable_state, self._generators.values()))
        self._amounts = self._amounts_now()
        self._made = self._made_now()

    def check(self, *, name: str) -> None:
        """Warn with RecomputeWarning of what the trace of ``name`` drew and changed."""
        # Initial weights have seeds that Keras draws by Python.
        if self._made_now() != self._made:
            return
        found = []
        for (source, generator), before in zip(self._generators.items(), self._states):
            if comparable_state(generator) != before:
                found.append(f"draws from {source}")
        for attribute, amount in self._amounts_now().items():
            if self._amounts.get(attribute, amount) != amount:
                found.append(f"changes {attribute}")
        if found:
            shown = ", ".join([*found[:_MOST], *(["..."] if len(found) > _MOST else [])])
            warn_user(
                f"{name!r} {shown}: {ONCE} Python runs what is recomputed once per signature, in "
                "eager mode too. Draw by keras.random with a SeedGenerator, keep counts in "
                "variables of layers, or leave the layer out of what is recomputed."
            )

    def _made_now(self) -> list[Any]:
        """Return which layers have weights, and whether Keras has its own generator."""
        owners = {id(owner): owner for owner, _, _ in self._held()}
        built = [getattr(owner, "built", True) for owner in owners.values()]
        return [global_seed_generator() is not None, *built]

    def _amounts_now(self) -> dict[str, float]:
        """Return numbers, and how much containers hold, of objects of the user's classes."""
        found = {}
        for owner, name, value in self._held():
            if is_of_library(type(owner)):
                continue
            if type(value) in (int, float):
                found[_named(owner, name)] = value
            elif isinstance(value, (list, dict, set)):
                found[_named(owner, name)] = len(value)
        return found


def _named(owner: Any, attribute: str) -> str:
    return f"{attribute!r} of {getattr(owner, 'name', type(owner).__name__)!r}"
