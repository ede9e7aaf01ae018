"""Layers that work in any Keras model: the checkpoint mark, a slice of time, and the fused
recurrent layers.
"""

import keras  # noqa: F401 - before any module here, since it registers our classes (``keras_registration``)
