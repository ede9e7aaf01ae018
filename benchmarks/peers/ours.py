"""This project: a ``keras_recompute.Model`` with checkpoint layers, as its users write it."""

from __future__ import annotations

import keras
from workloads import Workload, weights

import keras_recompute as kr

from . import Peer
from .keras_models import block_layers, dense, recurrent_layer
from .tensorflow_step import peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, compiled by XLA."""
    del name
    return trained(workload, model(workload, checkpoints))


def trained(workload: Workload, some_model: kr.Model) -> Peer:
    """Return the peer that trains a model, from the weights that all peers start with."""
    for variable, value in zip(some_model.trainable_variables, weights(workload), strict=True):
        variable.assign(value)
    variables = [v.value for v in some_model.trainable_variables]
    return peer(workload, lambda x: some_model(x, training=True), variables, jit=True)


def model(workload: Workload, checkpoints: int, levels: int = 1, *, scan_layers: bool = True) -> kr.Model:
    """Return the model with its checkpoints, in equal sections, placed by hand."""
    inputs = keras.Input(workload.shape[1:], batch_size=workload.batch)
    sections = workload.sections(checkpoints)
    if workload.is_recurrent:
        layer, state, outputs = recurrent_layer(workload, kr.LSTM, kr.GRU), None, []
        for number, (begin, end) in enumerate(sections):
            y, *state = layer(kr.TimeSlice(begin, end)(inputs), initial_state=state)
            outputs.append(y)
            if number < checkpoints:
                state = kr.RecomputationCheckpoint()(state)
        x = dense(workload)(keras.layers.Concatenate(axis=1)(outputs) if checkpoints else outputs[0])
    else:
        x = inputs
        for number, (begin, end) in enumerate(sections):
            for _ in range(begin, end):
                x = block_layers(workload, x, kr.MultiHeadAttention)
            if number < checkpoints:
                x = kr.RecomputationCheckpoint()(x)
    made = kr.Model(inputs, x)
    made.recomputation_levels, made.scan_layers = levels, scan_layers
    return made
