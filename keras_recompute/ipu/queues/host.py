"""Functions that talk to the host while they run, through queues. XLA cannot compile them, so TensorFlow runs them itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from ...engine.passes import target_now
from ...errors import RecomputeError
from ...seams.tensorflow.concrete_functions import is_compiled
from ..reports.profiling import run_reported

_uncompiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class HostNeededError(RecomputeError):
    """A function compiled by XLA uses a queue. (With another base, AutoGraph would make another error of it.)"""


def require_host(what: str) -> None:
    """Raise HostNeededError where XLA compiles the graph under construction."""
    if target_now().is_xla:
        raise HostNeededError(f"{what} cannot be compiled by XLA: call the function through IPUStrategy.run")


def run_with_queues(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``function(*args, **kwargs)`` of a ``tf.function``; one that uses queues is run without XLA, and no program."""
    uses_iterator = any(isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten((args, kwargs)))
    if function not in _uncompiled and not uses_iterator:
        try:
            if is_compiled(function):
                return run_reported(function, *args, keywords=kwargs)
            return function(*args, **kwargs)
        except HostNeededError:
            pass
    return _without_xla(function)(*args, **kwargs)


def _without_xla(function: Any) -> Callable[..., Any]:
    if function not in _uncompiled:
        _uncompiled[function] = tf.function(function.python_function)
    return _uncompiled[function]
