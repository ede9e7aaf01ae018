"""A double of the Poplar SDK's ``tensorflow.python.ipu`` for TensorFlow 2.6.

It has as much as the example uses. It is put into a copy of stock TensorFlow 2.6, accepts what the
SDK accepts and nothing else, logs every call, and trains through the stock ``tf.keras``. It shows
that the script keeps to the published API; it shows nothing about an IPU.
"""

import sdk_keras
import tensorflow as tf

from . import config, ipu_strategy, ops, pipelining_ops  # noqa: F401

_ = tf.keras.layers  # loads Keras, and so puts the module in the place of TensorFlow's lazy loader
tf.keras.ipu = sdk_keras
