"""The models of this project, with checkpoint layers, as its users write them."""

from __future__ import annotations

import keras
from workloads import Workload

import keras_recompute as kr

from .keras_models import block_layers, dense, network, recurrent_layer


def model(
    workload: Workload, checkpoints: int, levels: int = 1, *, scan_layers: bool = True
) -> kr.Model:
    """Return the model with its checkpoints, in equal sections, placed by hand."""
    sections = workload.sections(checkpoints)
    if workload.network:
        plain = network(workload)
        at = [workload.network.blocks[end - 1].result for _, end in sections[:-1]]
        return kr.checkpointed(plain, at=at) if at else kr.Model(plain.inputs, plain.outputs)
    inputs = keras.Input(workload.shape[1:], batch_size=workload.batch)
    if workload.is_recurrent:
        layer, state, outputs = recurrent_layer(workload, kr.LSTM, kr.GRU), None, []
        for number, (begin, end) in enumerate(sections):
            y, *state = layer(kr.TimeSlice(begin, end)(inputs), initial_state=state)
            outputs.append(y)
            if number < checkpoints:
                state = kr.RecomputationCheckpoint()(state)
        x = dense(workload)(
            keras.layers.Concatenate(axis=1)(outputs) if checkpoints else outputs[0]
        )
    else:
        x = inputs
        for number, (begin, end) in enumerate(sections):
            for block in range(begin, end):
                x = block_layers(workload, x, block, kr.MultiHeadAttention)
            if number < checkpoints:
                x = kr.RecomputationCheckpoint()(x)
    made = kr.Model(inputs, x)
    made.scan_layers = scan_layers
    if levels != 1:
        made.recomputation_levels = levels
    return made
