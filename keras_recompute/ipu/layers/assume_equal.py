"""Graphcore's layer for values that are equal in all replicas."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_recompute")
class AssumeEqualAcrossReplicas(keras.layers.Layer):
    """Return the inputs unchanged; equal values need no special treatment here.

    ``inplace`` has no effect.
    """

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inplace = inplace
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return ``inputs``, any nest of tensors."""
        return keras.tree.map_structure(lambda t: t, inputs)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the argument."""
        return {**super().get_config(), "inplace": self.inplace}
