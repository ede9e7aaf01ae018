"""Plain Keras, and the two ways to recompute that TensorFlow and Keras bring."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf
from workloads import Workload

from . import Peer
from .keras_models import assign, dense, recurrent_layer, sections
from .tensorflow_step import peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer: ``keras``, ``recompute-grad`` or ``remat``, with ``-jit`` under XLA."""
    forward, variables = plain_or_recomputed(name, workload, checkpoints)
    assign(workload, variables)
    return peer(workload, forward, [v.value for v in variables], jit=name.endswith("-jit"))


def plain_or_recomputed(
    name: str, workload: Workload, checkpoints: int
) -> tuple[Callable[[tf.Tensor], tf.Tensor], list[keras.Variable]]:
    """Return the forward pass of the peer, and its trainable variables."""
    how = {"keras": lambda f: f, "recompute-grad": tf.recompute_grad, "remat": keras.remat}[
        name.removesuffix("-jit")
    ]
    if workload.is_recurrent:
        layer, last = (
            recurrent_layer(workload, keras.layers.LSTM, keras.layers.GRU),
            dense(workload),
        )
        forward = _recurrent(workload, checkpoints, layer, last, how)
        layers = [layer, last]
    else:
        parts = sections(workload, checkpoints)
        forward = _sections(parts, how if checkpoints else lambda f: f)
        layers = [model for part in parts for model in part]
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
        state, outputs = (
            [tf.zeros([workload.batch, workload.units])] * (2 if workload.kind == "lstm" else 1),
            [],
        )
        for begin, end in workload.sections(checkpoints):
            y, *state = section(x[:, begin:end], *state)
            outputs.append(y)
        return last(tf.concat(outputs, axis=1))

    return forward


def _sections(parts, how):
    def section(models):
        def run(x):
            for model in models:
                x = model(x, training=True)
            return x

        return how(run)

    run_each = [section(models) for models in parts]

    def forward(x):
        for run in run_each:
            x = run(x)
        return x

    return forward
