"""The layer that marks where a model may forget: everything between two of them is recomputed."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_recompute")
class RecomputationCheckpoint(keras.layers.Layer):
    """Return the inputs unchanged; ``keras_recompute.Model`` saves them and recomputes what lies between checkpoints.

    Takes and returns any nest of tensors. In any other model it does nothing. Its config is Keras's own: name,
    trainable and dtype. A model lists its other layers as if one that ``was_inserted``, by ``checkpointed``, were not there.
    Source: the layer of the same name in Graphcore's TensorFlow addons.

    Examples:
        >>> x = inputs = keras.Input((8,))
        >>> for units in (16, 32):
        ...     x = keras.layers.Dense(units, "tanh")(x)
        ...     x = kr.RecomputationCheckpoint()(x)
        >>> model = kr.Model(inputs, keras.layers.Dense(1)(x))
        >>> len(model.plan.named_steps)  # a section for each checkpoint, and what comes after the last
        3
    """

    def __init__(self, *, was_inserted: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.was_inserted = was_inserted
        self.supports_masking = True
        self.built = True

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **({"was_inserted": True} if self.was_inserted else {})}

    def call(self, inputs: Any) -> Any:
        """Return ``inputs``, any nest of tensors."""
        return keras.tree.map_structure(lambda t: t, inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the shapes and types of ``inputs``."""
        return keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, dtype=t.dtype), inputs)
