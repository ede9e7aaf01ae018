"""Quantization of Keras's models without values, on JAX. Seen with Keras 3.12 to 3.15."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .patched_methods import patch_method
from .variables import has_value

_MODES = ("int8", "float8")


@contextmanager
def quantize_without_values(refuse: Callable[[str], None]) -> Iterator[None]:
    """Let ``keras.Model.quantize`` take models without values in the block.

    It runs in a function that JAX traces, where such weights are zeros. ``refuse(mode)`` is called
    for a mode that computes with values in NumPy, or needs data, and raises an error.
    """
    import jax
    import keras
    from keras.src import quantizers

    def in_trace(plain: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras gives to_numpy=True, the sixth argument, for weights.
        return plain(inputs, *args[:4], **{**kwargs, "to_numpy": False})

    def quantize(plain: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
        if all(map(has_value, model.variables)):
            plain(model, *args, **kwargs)
            return

        mode = args[0] if args else kwargs.get("mode")
        mode = mode or getattr(kwargs.get("config"), "mode", None)
        if mode not in _MODES:
            refuse(str(mode))

        def traced() -> None:
            with keras.StatelessScope():  # new weights are assigned values in it alone
                plain(model, *args, **kwargs)

        # Keras 3.12 reads it from the package.
        of_package = patch_method(quantizers, "abs_max_quantize", in_trace)
        with of_package, patch_method(quantizers.quantizers, "abs_max_quantize", in_trace):
            jax.eval_shape(traced)

    with patch_method(keras.Model, "quantize", quantize):
        yield
