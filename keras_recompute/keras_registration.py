"""Our layers and models are known to Keras from the import of this package on, so that it can load files that hold them.

Keras knows a class once the module that registers it was imported. This package loads its modules when they are first used,
and TensorFlow with them; so it imports those that register classes when Keras itself is imported, before or after it.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any, Optional

_LAYERS = (
    "layers.recurrent",
    "layers.attention",
    "layers.recomputation_checkpoint",
    "layers.time_slice",
    "layers.checkpointed_layer",
)
_REGISTER = (*_LAYERS, "models.model", "models.placed", "models.blocks")


def register_with_keras() -> None:
    """Register now if Keras has been imported, else when it is."""
    if "keras" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _KerasImportHook())


def _register() -> None:
    keras = sys.modules["keras"]
    if int(getattr(keras, "__version__", "0").split(".")[0]) >= 3:  # beside the Poplar SDK there is an older one
        for name in _REGISTER:
            importlib.import_module(f"{__package__}.{name}")


class _KerasImportHook(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find Keras, and has our classes registered when that is there."""

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
