"""Keras models that recompute: with checkpoints between layers, or layer by layer."""

# Keras comes before any module here, since its import registers our classes
# (``keras_registration``).
import keras  # noqa: F401
