"""``tf.keras.ipu``: what Graphcore adds to Keras."""

from __future__ import annotations

from .stages import PipelineStage

__all__ = ["PipelineStage"]
