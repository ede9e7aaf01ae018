"""Gradient checkpointing for Keras models on stock TensorFlow, and Graphcore's Keras API on top.

Names are loaded on first use. Importing this package, its planner or its liveness reader does not
load TensorFlow.
"""

import lazy_loader as _lazy

from .keras_registration import register_with_keras as _register_with_keras

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

_register_with_keras()
