"""The scopes of names that Keras has opened: those of layers, losses and optimizers."""

from __future__ import annotations


def current_scopes() -> str:
    """Return the path of the scopes, such as ``"functional/dense_1"``, on JAX and PyTorch."""
    from keras.src.backend.common.name_scope import current_path

    return str(current_path())
