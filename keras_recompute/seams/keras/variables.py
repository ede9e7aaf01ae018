"""Creation of Keras's variables without their values, on JAX. Seen with Keras 3.12 to 3.15."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .patched_methods import patch_method


@contextmanager
def without_values(refuse: Callable[[Any], None]) -> Iterator[None]:
    """Leave variables that are created in the block without values.

    In a function that JAX traces they are zeros, which are no arrays there. Elsewhere
    ``refuse(variable)`` is called when the missing value is read, and raises an error. A variable
    that is given an array keeps it.
    """
    from keras.src.backend import Variable

    def defer(_: Callable[..., Any], variable: Any, *__: Any) -> None:
        _set_layout(variable)
        variable._value = None
        variable._initializer = _zeros_in_traces(variable, refuse)

    # Variables that are created while shapes are inferred are initialized later, by the second.
    names = "_initialize_with_initializer", "_deferred_initialize"
    with patch_method(Variable, names[0], defer), patch_method(Variable, names[1], defer):
        yield


def _set_layout(variable: Any) -> None:
    """Set how ``keras.distribution`` divides ``variable``, where there is one."""
    if hasattr(variable, "_initialize_layout"):
        variable._initialize_layout()
        return
    import keras

    # Keras 3.12 does so when it gives the variable a value.
    distribution = keras.distribution.distribution()
    if variable._layout is None and distribution is not None:
        layout = distribution.get_variable_layout(variable)
        variable._layout = getattr(layout, "backend_layout", layout)


def _zeros_in_traces(variable: Any, refuse: Callable[[Any], None]) -> Callable[..., Any]:
    def zeros(shape: tuple[int, ...], dtype: Any = None) -> Any:
        import keras

        from ..jax.tracing import is_tracing

        if not is_tracing():
            refuse(variable)
        return keras.ops.zeros(shape, dtype)

    return zeros


def has_value(variable: Any) -> bool:
    """Return whether ``variable`` has a value."""
    return variable._value is not None


def has_values(model: Any) -> bool:
    """Return whether all variables of ``model`` have values."""
    return all(map(has_value, model.variables))
