"""Layers for any Keras model: checkpoint marks, time slices, and fused recurrent layers."""

import keras  # noqa: F401 - before any module here, since it registers our classes (``keras_registration``)
