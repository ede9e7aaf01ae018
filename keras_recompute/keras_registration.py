"""Registration of our layers and models with Keras, so that it can load files that hold them.

Keras knows a class once the module that registers it was imported. This package imports its
modules on first use, and TensorFlow with them. So the modules that register classes are imported
when Keras itself is, before or after this package.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any, Optional

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
    if "keras" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _KerasImportHook())


def _register() -> None:
    keras = sys.modules["keras"]
    # The Poplar SDK's environment has an older Keras.
    if int(getattr(keras, "__version__", "0").split(".")[0]) >= 3:
        for name in _REGISTER.get(keras.config.backend(), ()):
            importlib.import_module(f"{__package__}.{name}")


class _KerasImportHook(importlib.abc.MetaPathFinder):
    """Imports no module itself, but registers our classes once Keras is loaded."""

    def find_spec(self, name: str, *_: Any) -> Optional[Any]:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
