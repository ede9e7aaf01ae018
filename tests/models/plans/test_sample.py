"""``plan(sample=batch)``: open sizes are those of a batch, given as to fit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.models.execution.input_specs import value_specs
from keras_recompute.models.keras_graph.submodel_inlining import inline_submodels

LENGTH = 6
# Nothing needs to be compiled here.
PREDICTED = {"prove": False}
A, B = np.zeros((4, LENGTH), "int64"), np.zeros((4, LENGTH, 2))


def open_lengths() -> keras.Model:
    """Two inputs of unknown length, and a model inside that says less of its input than it is
    given.
    """
    words, features = (
        keras.Input((None,), name="words", dtype="int32"),
        keras.Input((None, 2), name="features"),
    )
    x = keras.layers.Embedding(5, 2)(words)
    inner_inputs = keras.Input((None, None))
    inner = keras.Model(inner_inputs, keras.layers.Activation("tanh")(inner_inputs))
    x = inner(keras.layers.Concatenate()([x, features]))
    for n in range(12):
        x = keras.layers.Dense(8, "tanh", name=f"dense_{n}")(x)
    return keras.Model({"words": words, "features": features}, x, name="open")


BATCHES = {
    "x": {"words": A, "features": B},
    "tensors": {"words": tf.constant(A), "features": tf.constant(B)},
    "specs": {"words": tf.TensorSpec(A.shape, tf.int32), "features": tf.TensorSpec(B.shape)},
    "x and y": ({"words": A, "features": B}, np.zeros(4)),
    "weights too": ({"words": A, "features": B}, np.zeros(4), np.ones(4)),
    "data set": tf.data.Dataset.from_tensor_slices(
        ({"words": A, "features": B}, np.zeros(4))
    ).batch(4),
    "generator": iter([({"words": A, "features": B}, np.zeros(4))]),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_says_all_sizes(batch):
    model = open_lengths()
    graph = inline_submodels(model)
    specs = value_specs(model, graph, batch_size=None, sample=BATCHES[batch])
    assert [specs[key] for key in graph.inputs] == [
        tf.TensorSpec((4, LENGTH, 2)),
        tf.TensorSpec((4, LENGTH), tf.int32),
    ]
    tanh = next(call for call in graph.calls if isinstance(call.operation, keras.layers.Activation))
    assert specs[tanh.outputs[0]].shape == (4, LENGTH, 4), "inside the model its sizes are open"
    assert specs[graph.outputs[0]].shape == (4, LENGTH, 8)


def test_the_batch_size_that_is_given_counts():
    model = open_lengths()
    graph = inline_submodels(model)
    assert value_specs(model, graph, batch_size=32, sample=BATCHES["x"])[
        graph.outputs[0]
    ].shape == (32, LENGTH, 8)


def test_a_plan_for_a_batch():
    model = open_lengths()
    plain = kr.plan(model, memory_budget="1GiB", sample=BATCHES["x"], **PREDICTED)[1]
    longer = {"words": np.zeros((4, 64 * LENGTH)), "features": np.zeros((4, 64 * LENGTH, 2))}
    long = kr.plan(model, memory_budget="1GiB", sample=longer, **PREDICTED)[1]
    assert long.plain_peak_bytes > 10 * plain.plain_peak_bytes
    ours, found = kr.plan(
        model, memory_budget=int(long.plain_peak_bytes * 0.8), sample=longer, **PREDICTED
    )
    assert found.checkpoints
    assert ours.plan.recomputes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": 4},
            r"'.*' in 'open' has the shape \(4, None.*\), .* unknown sizes. .* sample=, a batch",
        ),
        ({}, "batch_size is None, .* or give sample="),
        ({"sample": BATCHES["x"], "batch_size": -4}, "batch_size is -4: give a whole number of"),
        ({"sample": BATCHES["x"], "batch_size": "4"}, "batch_size is '4': give a whole number of"),
        (
            {"sample": A},
            "sample= has 1 arrays, and the inputs of 'open' are '.*', '.*'. Give the inputs as",
        ),
        ({"sample": {"words": A, "features": A}}, "sample= does not fit the inputs of 'open'.*"),
        (
            {"sample": {"words": A, "features": np.zeros((4, 6, 3))}},
            r"sample= has shape \(4, 6, 3\) for the input 'features' .*",
        ),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        kr.plan(open_lengths(), memory_budget="1MiB", **options)


def test_a_frozen_model_has_no_plan():
    model = open_lengths()
    model.trainable = False
    with pytest.raises(
        InvalidArgumentError,
        match=r"'open' has no trainable weights, .* Set layer.trainable = True",
    ):
        kr.plan(model, memory_budget="1MiB", sample=BATCHES["x"])
