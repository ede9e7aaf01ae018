"""Generators of random numbers of Python and NumPy, and their states."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
# The functions of these modules are methods of one generator each.
GLOBAL_GENERATORS: dict[str, Any] = {
    "Python's random module": random.random.__self__,  # type: ignore[attr-defined]
    "numpy.random": np.random.random.__self__,  # type: ignore[attr-defined]
}


def state_of(generator: Any) -> Any:
    """Return the state of one of the ``GENERATORS``, for ``set_state``."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def comparable_state(generator: Any) -> bytes:
    """Return the state in a form that can be compared: some states hold arrays."""
    return pickle.dumps(state_of(generator))


def set_state(generator: Any, state: Any) -> None:
    """Put back the ``state`` of one of the ``GENERATORS``."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
