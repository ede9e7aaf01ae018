"""Operations of a model share the traceback of the call, but for those that a line of the user's
own layer makes.
"""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.graph.source_location import source_of
from keras_recompute.engine.passes import tracebacks


class Doubled(keras.layers.Layer):
    def call(self, x):
        return tf.add(x, x, name="of_the_layer")


@pytest.fixture(params=["checkpoint", "plain"])
def operations(request):
    """The operations that a model makes in the training step of a user."""
    x = inputs = keras.Input((6, 4), batch_size=2)
    for _ in range(3):
        x = keras.layers.Dense(4, activation="gelu")(
            Doubled()(kr.LSTM(4, return_sequences=True)(x))
        )
        if request.param == "checkpoint":
            x = kr.RecomputationCheckpoint()(x)
    model = kr.Model(inputs, keras.layers.Dense(1)(x))

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        return model(x, training=True)

    return [
        op
        for op in step.get_concrete_function(tf.TensorSpec([2, 6, 4])).graph.get_operations()
        if op.traceback
    ]


def distinct(operations):
    return {tuple((frame.filename, frame.lineno) for frame in op.traceback) for op in operations}


def test_operations_share_the_traceback_of_the_call(operations):
    of_the_call = [
        op for op in operations if source_of(op) is not None and source_of(op).function == "step"
    ]
    assert len(of_the_call) > 10
    assert len(distinct(of_the_call)) == 1


def test_a_line_of_a_layer_keeps_its_own(operations):
    for operation in operations:
        if operation.name.endswith("of_the_layer"):
            assert source_of(operation).function == "call"


def test_without_tensorflows_function_tracebacks_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(tracebacks, "set_traceback", None)

    @tracebacks.share_tracebacks
    def build():
        return tf.sin(tf.constant(1.0)) + 1.0

    graph = tf.function(build, jit_compile=True, autograph=False).get_concrete_function().graph
    assert len(distinct(graph.get_operations())) > 1
