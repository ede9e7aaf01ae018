"""Plain Keras, and the two ways to recompute that TensorFlow and Keras bring."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf
from workloads import Workload, weights

from . import Peer
from .keras_models import blocks, dense, recurrent_layer
from .tensorflow_step import peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer: ``keras``, ``recompute-grad`` or ``remat``, with ``-jit`` compiled by XLA."""
    forward, variables = plain_or_recomputed(name, workload, checkpoints)
    for variable, value in zip(variables, weights(workload), strict=True):
        variable.assign(value)
    return peer(workload, forward, [v.value for v in variables], jit=name.endswith("-jit"))


def plain_or_recomputed(
    name: str, workload: Workload, checkpoints: int
) -> tuple[Callable[[tf.Tensor], tf.Tensor], list[keras.Variable]]:
    """Return the forward pass of the peer, and its trainable variables."""
    how = {"keras": lambda f: f, "recompute-grad": tf.recompute_grad, "remat": keras.remat}[name.removesuffix("-jit")]
    if workload.is_recurrent:
        layer, last = recurrent_layer(workload, keras.layers.LSTM, keras.layers.GRU), dense(workload)
        forward = _recurrent(workload, checkpoints, layer, last, how)
        layers = [layer, last]
    else:
        layers = blocks(workload)
        forward = _stack(workload, checkpoints, layers, how)
    if workload.is_recurrent:
        forward(tf.zeros(workload.shape))  # builds the layers
    return forward, [v for layer in layers for v in layer.trainable_variables]


def _recurrent(workload, checkpoints, layer, last, how):
    def section(x, *state):
        return layer(x, initial_state=list(state))

    if checkpoints:
        layer.build((workload.batch, workload.length, workload.features))
        section = how(section)

    def forward(x):
        if not checkpoints:
            return last(layer(x)[0])
        state, outputs = [tf.zeros([workload.batch, workload.units])] * (2 if workload.kind == "lstm" else 1), []
        for begin, end in workload.sections(checkpoints):
            y, *state = section(x[:, begin:end], *state)
            outputs.append(y)
        return last(tf.concat(outputs, axis=1))

    return forward


def _stack(workload, checkpoints, layers, how):
    def run(begin, end):
        def section(x):
            for block in layers[begin:end]:
                x = block(x, training=True)
            return x

        return how(section) if checkpoints else section

    sections = [run(begin, end) for begin, end in workload.sections(checkpoints)]

    def forward(x):
        for section in sections:
            x = section(x)
        return x

    return forward
