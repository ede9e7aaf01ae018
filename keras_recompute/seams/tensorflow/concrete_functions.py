"""Concrete functions of a ``tf.function``, and their compilation by XLA.

Importing this module does not load TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def is_compiled(function: Any) -> bool:
    """Whether ``function`` is a ``tf.function`` with ``jit_compile=True``, or wraps one."""
    return bool(getattr(function, "_jit_compile", None))


def fresh_function(function: Any) -> Any:
    """Return an untraced ``tf.function`` with ``jit_compile=True`` that computes ``function``.

    ``function`` is a Python function or a ``tf.function``, compiled or not.
    """
    import tensorflow as tf

    autograph = getattr(function, "_autograph", True)
    return tf.function(
        getattr(function, "python_function", function), jit_compile=True, autograph=autograph
    )


def traces(function: Any) -> list[Any]:
    """Return the concrete functions of a ``tf.function``, in the order of tracing."""
    return list(function._list_all_concrete_functions())


def called_functions(graph: Any) -> Mapping[str, Any]:
    """Return the functions that operations of ``graph`` call, by name.

    A function has a ``graph`` if that is known.
    """
    functions: Mapping[str, Any] = graph._functions
    return functions


def xla_compiler(concrete: Any, specs: Sequence[Any]) -> Callable[..., bytes]:
    """Return a function of ``stage`` that compiles ``concrete`` for ``specs`` and serializes it."""
    from tensorflow.python.eager.polymorphic_function.compiler_ir import from_concrete_function

    compile_now: Callable[..., bytes] = from_concrete_function(concrete, specs)
    return compile_now
