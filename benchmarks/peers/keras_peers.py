"""Plain Keras, and the two ways to recompute that TensorFlow and Keras bring."""

from __future__ import annotations

import keras
import tensorflow as tf
from workloads import Workload, weights

from . import Peer
from .keras_models import dense, recurrent_layer, transformer_blocks
from .tensorflow_step import peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer: ``keras``, ``recompute-grad`` or ``remat``, with ``-jit`` compiled by XLA."""
    how = {"keras": lambda f: f, "recompute-grad": tf.recompute_grad, "remat": keras.remat}[name.removesuffix("-jit")]
    if workload.is_recurrent:
        layer, last = recurrent_layer(workload, keras.layers.LSTM, keras.layers.GRU), dense(workload)
        forward = _recurrent(workload, checkpoints, layer, last, how)
        layers = [layer, last]
    else:
        layers = transformer_blocks(workload)
        forward = _transformer(workload, checkpoints, layers, how)
    forward(tf.zeros([workload.batch, workload.length, workload.features]))  # builds the layers
    variables = [v for layer in layers for v in layer.trainable_variables]
    for variable, value in zip(variables, weights(workload), strict=True):
        variable.assign(value)
    return peer(workload, forward, [v.value for v in variables], jit=name.endswith("-jit"))


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


def _transformer(workload, checkpoints, blocks, how):
    def run(begin, end):
        def section(x):
            for block in blocks[begin:end]:
                x = block(x)
            return x

        return how(section) if checkpoints else section

    sections = [run(begin, end) for begin, end in workload.sections(checkpoints)]
    if checkpoints:
        for block in blocks:
            block.build((workload.batch, workload.length, workload.features))

    def forward(x):
        for section in sections:
            x = section(x)
        return x

    return forward
