"""Constructor arguments of the optimizers of ``tf.compat.v1.train``, in Keras's terms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Class -> its attributes -> their names in Keras.
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "GradientDescentOptimizer": {"_learning_rate": "learning_rate"},
    "MomentumOptimizer": {
        "_learning_rate": "learning_rate",
        "_momentum": "momentum",
        "_use_nesterov": "nesterov",
    },
    "AdamOptimizer": {
        "_lr": "learning_rate",
        "_beta1": "beta_1",
        "_beta2": "beta_2",
        "_epsilon": "epsilon",
    },
}


def constructor_arguments(optimizer: Any) -> tuple[str, dict[str, Any]] | None:
    """Return class name and arguments of ``optimizer`` in Keras's terms; None for other classes."""
    for name, attributes in _ATTRIBUTES.items():
        if type(optimizer) is getattr(tf.compat.v1.train, name):
            return name, {
                keras: getattr(optimizer, attribute) for attribute, keras in attributes.items()
            }
    return None
