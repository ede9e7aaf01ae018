"""The default of ``jit_compile``: jit on a CPU for models that are known to be faster with it.

On TensorFlow Keras trains without jit where there are CPUs alone. Without jit, steps with attention
or with this library's recurrent layers take 1.1 to 2.9 times as long, and more memory. Convolutions
and Keras's recurrent layers are faster without it (benchmarks/notes/machines.md).

Only models are chosen that compute the same both ways. XLA may lack an operation of a custom layer
or function. An ``Embedding`` raises an error for a number beyond its table, and under XLA returns
another row.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import keras

from ...keras_backend import TENSORFLOW, current_backend
from ...layers.attention import MultiHeadAttention
from ...layers.recomputation_checkpoint import RecomputationCheckpoint
from ...layers.recurrent import GRU, LSTM
from ...layers.time_slice import TimeSlice
from ...seams.keras.graph import Functional
from ...seams.keras.layers import layers_in
from ...seams.keras.training import has_own_train_step

_OURS = (LSTM, GRU, MultiHeadAttention)
# Classes of ``keras.layers``.
_FASTER = ("MultiHeadAttention", "GroupQueryAttention")
# Layers as fast with jit as without, and parts of the faster ones.
_AS_FAST = (
    *("InputLayer", "Identity", "Dense", "EinsumDense", "TimeDistributed", "Bidirectional"),
    *("LSTMCell", "GRUCell", "LayerNormalization", "RMSNormalization", "Normalization"),
    *("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "Rescaling"),
    *("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax"),
    *("Add", "Subtract", "Multiply", "Average", "Concatenate"),
    *("Reshape", "Flatten", "Permute", "RepeatVector"),
    *("GlobalAveragePooling1D", "GlobalMaxPooling1D"),
)
# Classes of the operations that ``+``, ``[...]`` and ``keras.ops`` put into a functional model.
_OPERATIONS = (
    *("Add", "Subtract", "Multiply", "TrueDivide", "Negative", "Matmul"),
    *("GetItem", "Reshape", "Transpose", "Concatenate", "Mean", "Sum"),
)
_log = logging.getLogger("keras_recompute")


def takes_jit(model: keras.Model, losses_and_metrics: Any) -> bool:
    """Whether ``model`` is to be compiled with jit where ``compile`` was given no choice.

    ``losses_and_metrics`` is a nest of what ``compile`` was given. Custom ones might not compile.
    The first time that jit is chosen it is logged, as a warning of ``keras_recompute``.
    """
    is_chosen = _are_of_keras(losses_and_metrics) and _is_faster_with_jit(model)
    if is_chosen:
        _say_once()
    return is_chosen


def _is_faster_with_jit(model: keras.Model) -> bool:
    """Whether training steps of ``model`` are known to be faster with jit.

    They are on TensorFlow, with CPUs alone, for models of certain layers. All sizes of the inputs
    but the batch must be known, since jit compiles once for each length.
    """
    if current_backend() != TENSORFLOW or has_own_train_step(model) or _is_elsewhere(model):
        return False
    layers = layers_in(model)
    if not any(map(_is_faster, layers)) or not all(map(_is_no_slower, layers)):
        return False
    return all(None not in tensor.shape[1:] for tensor in model.inputs)


def _is_faster(layer: keras.Layer) -> bool:
    return type(layer) in _OURS or _is_named(layer, _FASTER)


def _is_no_slower(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.Model):
        return _is_plain_graph(layer)
    if not _are_of_keras(getattr(layer, "activation", None)):
        return False
    is_ours = type(layer) in (RecomputationCheckpoint, TimeSlice)
    return is_ours or _is_faster(layer) or _is_named(layer, _AS_FAST) or _cuts_patches(layer)


def _cuts_patches(layer: keras.Layer) -> bool:
    """Whether ``layer`` is a convolution that is one product with pieces of its input."""
    return _is_named(layer, ("Conv1D", "Conv2D")) and layer.kernel_size == layer.strides


def _is_named(layer: keras.Layer, names: Sequence[str]) -> bool:
    """Whether the class of ``layer`` is one of Keras's ``names``, none derived from it."""
    return any(type(layer) is getattr(keras.layers, name) for name in names)


def _is_elsewhere(model: keras.Model) -> bool:
    """Whether ``model`` trains on several replicas, or where there are other devices than CPUs."""
    import tensorflow as tf

    from ...seams.keras.replicated_steps import strategy_of

    devices = tf.config.list_physical_devices()
    return strategy_of(model) is not None or any(each.device_type != "CPU" for each in devices)


def _is_plain_graph(model: keras.Model) -> bool:
    """Whether ``model`` consists of its layers, and of operations that are as fast with jit."""
    if isinstance(model, keras.Sequential):
        return True
    if not isinstance(model, Functional):
        return False
    operations = [each for each in model.operations if not isinstance(each, keras.Layer)]
    return all(type(each).__name__ in _OPERATIONS for each in operations)


def _are_of_keras(nest: Any) -> bool:
    """Whether functions, losses and metrics are Keras's, by name, module or class."""
    return all(
        leaf is None or isinstance(leaf, str) or leaf.__module__.startswith("keras.")
        for leaf in keras.tree.flatten(nest)
    )


@functools.cache
def _say_once() -> None:
    _log.warning(
        "Models with attention, or with recurrent layers of keras_recompute, train with jit here: "
        "that is faster on a CPU. compile(..., jit_compile=False) trains without."
    )
