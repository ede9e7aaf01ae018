"""Gradient checkpointing for Keras models on TensorFlow, JAX and PyTorch.

Names are loaded on first use. Importing this package, its planner or its liveness reader does not
load TensorFlow or JAX.
"""

from typing import Any as _Any

import lazy_loader as _lazy

from .keras_backend import FEATURES as _FEATURES
from .keras_backend import require as _require
from .keras_registration import register_with_keras as _register_with_keras

__version__ = "0.3.0"

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> _Any:
    if name in _FEATURES:
        _require(name)
    return _load(name)


_register_with_keras()
