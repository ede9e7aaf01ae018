"""A warning of Python that a plain eager call runs each time, and a traced one only once.

Called eagerly, a section or checkpointed function is traced once per signature. What it draws from
generators of Python and NumPy, and what its layers count in Python, then stays as in that trace.
The generators are the global ones and those in attributes of layers and objects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...seams.keras.layers import global_seed_generator
from ...user_code import warn_user
from .object_contents import LIBRARIES
from .side_effects import GENERATORS, generator_state

_MOST = 3  # that a warning names


class PythonEachTime:
    """What a call uses in Python, before it is traced.

    ``held`` yields objects, each with a name and value of an attribute, as they are now.
    """

    def __init__(self, held: Callable[[], Iterable[tuple[Any, str, Any]]]) -> None:
        self._held = held
        self._generators = {
            "Python's random module": random.random.__self__,  # type: ignore[attr-defined]
            "numpy.random": np.random.random.__self__,  # type: ignore[attr-defined]
        }
        for owner, name, value in held():
            if isinstance(value, GENERATORS):
                self._generators[_named(owner, name)] = value
        self._states = list(map(generator_state, self._generators.values()))
        self._amounts = self._amounts_now()
        self._made = self._made_now()

    def warn_of_changes(self, name: str) -> None:
        """Warn of what the trace of ``name`` drew and changed."""
        # Initial weights have seeds that Keras draws by Python.
        if self._made_now() != self._made:
            return
        found = []
        for (source, generator), before in zip(self._generators.items(), self._states):
            if generator_state(generator) != before:
                found.append(f"draws from {source}")
        for attribute, amount in self._amounts_now().items():
            if self._amounts.get(attribute, amount) != amount:
                found.append(f"changes {attribute}")
        if found:
            shown = ", ".join([*found[:_MOST], *(["..."] if len(found) > _MOST else [])])
            warn_user(
                f"{name!r} {shown}: this happened now and will not happen at later "
                "calls, because Python runs what is recomputed once per signature, in eager mode "
                "too. Draw by keras.random with a SeedGenerator, keep counts in variables of "
                "layers, or leave the layer out of what is recomputed."
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
            if type(owner).__module__.split(".")[0] in LIBRARIES:
                continue
            if type(value) in (int, float):
                found[_named(owner, name)] = value
            elif isinstance(value, (list, dict, set)):
                found[_named(owner, name)] = len(value)
        return found


def _named(owner: Any, attribute: str) -> str:
    return f"{attribute!r} of {getattr(owner, 'name', type(owner).__name__)!r}"
