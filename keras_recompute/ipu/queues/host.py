"""Functions that exchange data with the host while they run, through queues.

XLA cannot compile them, so TensorFlow runs them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from ...engine import target_now
from ...errors import RecomputeError
from ...seams.tensorflow.concrete_functions import is_compiled
from ..reports.profiling import run_reported

_uncompiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class HostNeededError(RecomputeError):
    """A function that XLA compiles uses a queue.

    AutoGraph would replace an error with another base by an error of its own.
    """


def require_host(what: str) -> None:
    """Raise HostNeededError if XLA compiles the graph under construction."""
    if target_now().is_xla:
        raise HostNeededError(
            f"{what} cannot be compiled by XLA: call the function through IPUStrategy.run"
        )


def run_with_queues(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``function(*args, **kwargs)``, with ``function`` a ``tf.function``.

    One that uses queues runs without XLA and is not reported as a program.
    """
    # An iterator is a resource of the host, which XLA cannot use.
    uses_iterator = any(
        isinstance(leaf, tf.data.Iterator) for leaf in tf.nest.flatten((args, kwargs))
    )
    if function not in _uncompiled and not uses_iterator:
        try:
            if is_compiled(function):
                return run_reported(function, *args, keywords=kwargs)
            return function(*args, **kwargs)
        except HostNeededError:
            pass
    return _without_xla(function)(*args, **kwargs)


def _without_xla(function: Any) -> Callable[..., Any]:
    """Return ``function`` as a ``tf.function`` that XLA does not compile."""
    if function not in _uncompiled:
        _uncompiled[function] = tf.function(function.python_function)
    return _uncompiled[function]
