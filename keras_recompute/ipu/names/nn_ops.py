"""``tensorflow.python.ipu.nn_ops``: activations as popnn computes them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..layers.popnn import hard_sigmoid as _hard_sigmoid

__all__ = ["gelu", "hard_sigmoid", "swish"]


def gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """Return ``x Phi(x)`` in the tanh approximation that popnn computes.

    Source: Hendrycks and Gimpel 2016, section 2.

    Args:
        x: A floating-point tensor.
        name: Has no effect.
    """
    del name
    # popnn has the tanh form only.
    return tf.nn.gelu(x, approximate=True)


def swish(x: Any, name: str | None = None) -> tf.Tensor:
    """Return ``x sigmoid(x)``.

    Args:
        x: A floating-point tensor.
        name: Has no effect.
    """
    del name
    return tf.nn.silu(x)


def hard_sigmoid(x: Any, name: str | None = None) -> tf.Tensor:
    """Return ``0.2 x + 0.5``, clipped to [0, 1].

    Args:
        x: A floating-point tensor.
        name: Has no effect.
    """
    del name
    return _hard_sigmoid(tf.convert_to_tensor(x))
