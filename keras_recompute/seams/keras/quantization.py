"""Quantization of Keras's models without values. Seen with Keras 3.12 to 3.15."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .patched_methods import patch_method
from .variables import has_values, run_on_shapes

MODES_WITHOUT_VALUES = ("int8", "float8")


@contextmanager
def quantize_without_values(refuse: Callable[[str], None]) -> Iterator[None]:
    """Let ``keras.Model.quantize`` take models without values in the block.

    It runs as Keras infers shapes, where weights need no values.
    ``refuse(mode)`` is called for a mode that computes with values in NumPy or needs data, and
    raises an error.
    """
    import keras
    from keras.src import quantizers

    def without_numpy(plain: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # For weights Keras passes to_numpy=True, the sixth argument; NumPy needs values.
        return plain(inputs, *args[:4], **{**kwargs, "to_numpy": False})

    def quantize(plain: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
        if has_values(model):
            plain(model, *args, **kwargs)
            return

        mode = args[0] if args else kwargs.get("mode")
        mode = mode or getattr(kwargs.get("config"), "mode", None)
        if mode not in MODES_WITHOUT_VALUES:
            refuse(str(mode))

        # Layers of Keras 3.12 call it as a function of the package, later ones in its own module.
        of_package = patch_method(quantizers, "abs_max_quantize", without_numpy)
        with of_package, patch_method(quantizers.quantizers, "abs_max_quantize", without_numpy):
            run_on_shapes(lambda: plain(model, *args, **kwargs))

    with patch_method(keras.Model, "quantize", quantize):
        yield
