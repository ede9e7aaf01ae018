"""Registration of our layers and models with Keras, so that it can load files that hold them.

Keras knows a class once the module that registers it was imported. This package imports its
modules on first use, and TensorFlow with them. So the modules that register classes are imported
when Keras itself is, before or after this package.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any, Callable, Optional

_ANY_BACKEND = (
    "layers.recomputation_checkpoint",
    "layers.time_slice",
    "layers.checkpointed_layer",
    "models.classes.model",
    "models.classes.placed_model",
    "models.classes.layer_remat",
)
_REGISTER = {
    "tensorflow": (*_ANY_BACKEND, "layers.recurrent", "layers.attention"),
    "jax": (*_ANY_BACKEND, "layers.recurrent", "layers.attention"),
    "torch": _ANY_BACKEND,
}


def register_with_keras() -> None:
    """Register now if Keras has been imported, else when it is."""
    once_keras_is_imported(_register)


def once_keras_is_imported(act: Callable[[], None]) -> None:
    """Call ``act`` now if Keras has been imported, else when it is."""
    if "keras" in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _KerasImportHook(act))


def _register() -> None:
    keras = sys.modules["keras"]
    # The Poplar SDK's environment has an older Keras.
    if int(getattr(keras, "__version__", "0").split(".")[0]) >= 3:
        for name in _REGISTER.get(keras.config.backend(), ()):
            importlib.import_module(f"{__package__}.{name}")


class _KerasImportHook(importlib.abc.MetaPathFinder):
    """Imports no module itself, but calls ``act`` once Keras is loaded."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._is_asking = act, False

    def find_spec(self, name: str, *_: Any) -> Optional[Any]:
        if name != "keras" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: Any) -> None:
                load(module)
                # Not before: TensorFlow asks where Keras is, and does not load it.
                sys.meta_path.remove(self)
                self._act()

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
