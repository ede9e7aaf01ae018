"""What the optimisers of ``tf.compat.v1.train`` were constructed with."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Class: its attributes, and what they are called in Keras.
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "GradientDescentOptimizer": {"_learning_rate": "learning_rate"},
    "MomentumOptimizer": {"_learning_rate": "learning_rate", "_momentum": "momentum", "_use_nesterov": "nesterov"},
    "AdamOptimizer": {"_lr": "learning_rate", "_beta1": "beta_1", "_beta2": "beta_2", "_epsilon": "epsilon"},
}


def constructor_arguments(optimizer: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the class of ``optimizer`` and its arguments, in Keras's words; None for a class that is not known."""
    for name, attributes in _ATTRIBUTES.items():
        if type(optimizer) is getattr(tf.compat.v1.train, name):
            return name, {keras: getattr(optimizer, attribute) for attribute, keras in attributes.items()}
    return None
