"""The scopes of names that Keras has opened: those of layers, losses and optimizers."""

from __future__ import annotations


def current_scopes() -> str:
    """Return the path of the scopes, such as ``"functional/dense_1"``, on JAX and PyTorch."""
    from keras.src.backend.common.name_scope import current_path

    return str(current_path())


def open_scopes() -> list[str]:
    """Return the names of the scopes that are open, without the parents that they stand for."""
    from keras.src.backend.common import global_state

    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return [scope.name for scope in scopes]
