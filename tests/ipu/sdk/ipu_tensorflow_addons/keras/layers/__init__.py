# ruff: noqa: ARG002
"""The double of Graphcore's layers: their arguments, over Keras's layers."""

import sdk_keras
import tensorflow as tf
from sdk_calls import record, wrong


class _Popnn:
    def __init__(
        self,
        units,
        partials_dtype=tf.float32,
        seed=None,
        dropout_seed=None,
        time_major=False,
        options=None,
        options_bwd=None,
        **kwargs,
    ):
        name, takes = (
            type(self).__name__,
            {"return_sequences", "return_state", "stateful", "dropout", "name", "dtype"},
        )
        if set(kwargs) - takes or time_major or options or options_bwd:
            wrong(f"{name}({kwargs})")
        record(name, units=units, stage=sdk_keras.PipelineStage.current, **kwargs)
        super().__init__(units, **kwargs)

    def __call__(self, inputs, initial_state=None, **kwargs):
        if sdk_keras.PipelineStage.current is None:  # Keras runs the model
            return super().__call__(inputs, initial_state=initial_state, **kwargs)
        if len(inputs.shape) != 3 or kwargs:
            wrong(f"a call with {inputs.shape}, {kwargs}")
        states = None if initial_state is None else [list(state.shape) for state in initial_state]
        record(f"call {type(self).__name__}", inputs=list(inputs.shape), states=states)
        return super().__call__(inputs, initial_state=initial_state)


class PopnnLSTM(_Popnn, tf.keras.layers.LSTM):
    pass


class PopnnGRU(_Popnn, tf.keras.layers.GRU):
    pass


class RecomputationCheckpoint(tf.keras.layers.Layer):
    def call(self, inputs):
        record("RecomputationCheckpoint", inputs=[list(t.shape) for t in tf.nest.flatten(inputs)])
        return tf.nest.map_structure(tf.identity, inputs)


LSTM, GRU = PopnnLSTM, PopnnGRU
