"""TensorFlow 1 optimisers in ``compile``, replaced by Keras's counterparts."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...errors import UnsupportedError
from ...seams.tensorflow.optimizers import constructor_arguments

_OF_KERAS = {
    "GradientDescentOptimizer": keras.optimizers.SGD,
    "MomentumOptimizer": keras.optimizers.SGD,
    "AdamOptimizer": keras.optimizers.Adam,
}


def keras_counterpart(optimizer: Any) -> Any:
    """Return ``optimizer``, or Keras's counterpart of one of ``tf.compat.v1.train``.

    Raises UnsupportedError if it has no counterpart.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return optimizer
    found = constructor_arguments(optimizer)
    if found is None:
        raise UnsupportedError(
            f"compile(optimizer=tf.compat.v1.train.{type(optimizer).__name__}(...)) is not "
            f"supported; of TensorFlow 1's optimizers only {', '.join(_OF_KERAS)} are. Use one of "
            "keras.optimizers"
        )
    name, arguments = found
    arguments["learning_rate"] = float(arguments["learning_rate"])
    return _OF_KERAS[name](**arguments)
