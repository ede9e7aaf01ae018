"""What ``fit`` refuses as Graphcore's does: data, steps, and overridden methods.

Source: Graphcore, fit.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from .pipelines import BATCH, data, pipelined

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.mark.usefixtures("scope")
def test_running_eagerly():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    with pytest.raises(RuntimeError, match="run_eagerly=True is not supported"):
        model.compile("sgd", "mse", run_eagerly=True)


def test_steps_that_do_not_divide():
    with pytest.raises(
        ValueError, match=r"3 steps per epoch do not divide .* steps_per_execution=2"
    ):
        pipelined(steps=2).fit(*data(3), batch_size=BATCH, verbose=0)


def test_an_execution_is_a_multiple_of_the_accumulation():
    with pytest.raises(
        RuntimeError,
        match="steps_per_execution=3 must be a multiple of the 2 gradient accumulation steps",
    ):
        pipelined(steps=3, accumulation=2).fit(*data(3), batch_size=BATCH, verbose=0)


@pytest.mark.long
def test_more_steps_per_execution_than_steps_are_cut_with_a_warning():
    model = pipelined(steps=8, accumulation=2)
    with pytest.warns(
        UserWarning, match="steps_per_execution=8 is more than the 4 steps of an epoch"
    ):
        model.fit(*data(4), batch_size=BATCH, shuffle=False, verbose=0)
    assert len(model.training_record.losses) == 2


def test_a_dataset_with_an_open_batch():
    dataset = tf.data.Dataset.from_tensor_slices(data(4)).batch(BATCH)
    with pytest.raises(ValueError, match="drop_remainder=True"):
        pipelined().fit(dataset, verbose=0)


@pytest.mark.long
def test_a_dataset_with_a_fixed_batch():
    dataset = tf.data.Dataset.from_tensor_slices(data(4)).batch(BATCH, drop_remainder=True)
    pipelined().fit(dataset, shuffle=False, verbose=0)


@pytest.mark.parametrize("steps", [1, 2])
def test_arrays_with_a_partial_batch(steps):
    x, y = data(4)
    with pytest.raises(ValueError, match=r"7 samples .* batch_size=2"):
        pipelined(steps=steps, accumulation=steps).fit(x[:-1], y[:-1], batch_size=BATCH, verbose=0)


@pytest.mark.parametrize(
    "name",
    [
        "train_step",
        "test_step",
        "predict_step",
        "make_train_function",
        "make_test_function",
        "make_predict_function",
        "call",
    ],
)
def test_overridden_methods(scope, name):
    del scope
    inputs = keras.Input((3,), batch_size=1)
    model = type("Mine", (keras.Model,), {name: lambda _: None})(
        inputs, keras.layers.Dense(1)(inputs)
    )
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=f"Mine overrides {name}"):
        model.fit(np.ones((1, 3)), np.ones((1, 1)), batch_size=1, verbose=0)


def test_generators():
    def generator():
        yield data(1)

    with pytest.raises(ValueError, match="generator"):
        pipelined(steps=1, accumulation=1).fit(generator(), steps_per_epoch=1, verbose=0)
