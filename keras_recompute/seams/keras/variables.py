"""Creation of Keras's variables without their values. Seen with Keras 3.12 to 3.15.

Importing this module loads neither Keras nor its backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .name_scopes import open_scopes
from .patched_methods import patch_constructor, patch_method

Refuse = Callable[[Any], None]


@contextmanager
def without_values(refuse: Refuse, note: Callable[[Any], object] | None = None) -> Iterator[None]:
    """Leave variables that are created in the block without values.

    ``refuse(variable)`` is called where the missing value is read, and raises an error. It is not
    called where shapes are inferred, or a function is traced to be compiled. A variable that is
    given an array keeps it. ``note(model)`` is called for each model that is created.
    """
    import keras
    from keras.src.backend import Variable

    leave_empty = _ON_BACKEND[keras.config.backend()]

    def defer(_: Callable[..., Any], variable: Any, *__: Any) -> None:
        leave_empty(variable, refuse)

    def noted(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if note is not None:
            note(model)
        return args, kwargs

    at_once = patch_method(Variable, "_initialize_with_initializer", defer)
    # Of variables that are created while shapes are inferred.
    later = patch_method(Variable, "_deferred_initialize", defer)
    with at_once, later, patch_constructor(keras.Model, noted):
        yield


def _leave_empty_on_tensorflow(variable: Any, refuse: Refuse) -> None:
    import tensorflow as tf

    from ..tensorflow.valueless_variables import ValuelessVariable

    if tf.distribute.has_strategy():
        raise NotImplementedError(
            f"{variable.path!r} is created without a value, and replicas need one: build the model "
            "outside of strategy.scope()"
        )
    # In a graph TensorFlow numbers name scopes, and a variable would have another layer's name.
    with tf.init_scope(), tf.compat.v1.name_scope(None):
        variable._value = ValuelessVariable(
            partial(refuse, variable),
            shape=variable.shape,
            dtype=variable._dtype,
            name="/".join((*open_scopes(), variable.name)),
            trainable=variable.trainable,
            aggregation=variable._map_aggregation(variable.aggregation),
            synchronization=variable._map_synchronization(variable.synchronization),
        )
    variable._initializer = None


def _leave_empty_on_torch(variable: Any, refuse: Refuse) -> None:
    from keras.src.backend.torch.core import to_torch_dtype

    from ..torch.valueless_parameters import ValuelessParameter

    variable._value = ValuelessParameter.like(
        variable.shape,
        to_torch_dtype(variable._dtype),
        is_trained=variable.trainable,
        refuse=partial(refuse, variable),
    )
    variable._initializer = None


def _leave_empty_on_jax(variable: Any, refuse: Refuse) -> None:
    """Leave ``variable`` without an array. Where Keras traces shapes it is zeros."""
    _set_layout(variable)
    variable._value = None
    variable._initializer = _zeros_for_shapes(variable, refuse)


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


def _zeros_for_shapes(variable: Any, refuse: Refuse) -> Callable[..., Any]:
    def zeros(shape: tuple[int, ...], dtype: Any = None) -> Any:
        import keras
        from keras.src.backend.common.stateless_scope import in_stateless_scope

        from ..jax.tracing import is_tracing

        # Elsewhere a program would be compiled that has zeros for weights, which take no memory.
        if not (is_tracing() and in_stateless_scope()):
            refuse(variable)
        return keras.ops.zeros(shape, dtype)

    return zeros


_ON_BACKEND: dict[str, Callable[[Any, Refuse], None]] = {
    "tensorflow": _leave_empty_on_tensorflow,
    "jax": _leave_empty_on_jax,
    "torch": _leave_empty_on_torch,
}


@contextmanager
def only_compiling() -> Iterator[None]:
    """Return a context in which functions are traced to be compiled, and not to run.

    On TensorFlow they may read variables without values there.
    """
    import keras

    if keras.config.backend() != "tensorflow":
        yield
        return
    from ..tensorflow.valueless_variables import only_compiling as on_tensorflow

    with on_tensorflow():
        yield


def run_on_shapes(work: Callable[[], None]) -> None:
    """Call ``work()``, whose operations compute shapes alone. Variables keep what they have."""
    import keras

    backend = keras.config.backend()
    if backend == "torch":
        with keras.device("meta"):
            work()
    elif backend == "jax":
        import jax

        def traced() -> None:
            with keras.StatelessScope():  # which takes what is assigned
                work()

        jax.eval_shape(traced)
    else:
        from ..tensorflow.valueless_variables import graph_not_to_run

        with graph_not_to_run():
            work()


def has_value(variable: Any) -> bool:
    """Return whether ``variable`` has a value."""
    value = variable._value
    return value is not None and not getattr(value, "lacks_value", False)


def has_values(model: Any) -> bool:
    """Return whether all variables of ``model`` have values."""
    return all(map(has_value, model.variables))
