"""The data of ``fit``, ``evaluate`` and ``predict``, and its steps per execution.

Source: Graphcore, fit.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from .pipelines import BATCH, data, pipelined

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.mark.long
def test_arguments_by_position_are_those_of_keras():
    """Batch size, epochs and verbosity, in Keras's order."""
    model, (x, y) = pipelined(), data(2)
    history = model.fit(x, y, BATCH, 2, 0)
    assert len(history.history["loss"]) == 2
    assert len(model.training_record.losses) == 2
    assert model.evaluate(x, y, BATCH, 0) == pytest.approx(
        model.evaluate(x, y, batch_size=BATCH, verbose=0)
    )
    assert model.predict(x, BATCH, 0).shape[0] == 2 * BATCH
    with pytest.raises(TypeError, match="too many positional arguments"):
        model.predict(x, BATCH, 0, 1, None, "more")


@pytest.mark.long
def test_steps_are_cut_for_the_data_that_is_too_short_alone():
    """Two microbatches to predict, then four to train on, as four steps per execution say."""
    model, (x, y) = pipelined(steps=4, accumulation=4), data(4)
    with pytest.warns(UserWarning, match="steps_per_execution=4 is more than the 2 steps"):
        model.predict(x[: 2 * BATCH], batch_size=BATCH, verbose=0)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert len(model.training_record.losses) == 1
    assert model.steps_per_execution == 4


@pytest.mark.long
@pytest.mark.parametrize("is_pipeline", [True, False])
def test_short_validation_data_is_evaluated_whole(is_pipeline):
    """One microbatch where two run at once: cut, and training goes on with two."""
    from tensorflow.python import ipu

    model, (x, y), (few_x, few_y) = pipelined(), data(4), data(1)
    if not is_pipeline:
        with ipu.ipu_strategy.IPUStrategy().scope():
            inputs = keras.Input(x.shape[1:], batch_size=BATCH)
            model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
            model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
    with pytest.warns(UserWarning, match="steps_per_execution=2 is more than the 1 steps"):
        history = model.fit(
            x, y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(few_x, few_y)
        ).history
    assert len(history["val_loss"]) == 2
    expected = np.mean((keras.Model(model.inputs[0], model.outputs[0])(few_x) - few_y) ** 2)
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)
    assert model.steps_per_execution == 2
    assert model.evaluate(x, y, batch_size=BATCH, verbose=0) > 0


@pytest.mark.parametrize("rows", [3 * BATCH, 4 * BATCH - 1])
def test_validation_data_that_is_not_evaluated_whole_is_refused_before_training(rows):
    model, (x, y) = pipelined(), data(4)
    said = (
        "3 steps per epoch do not divide"
        if rows == 3 * BATCH
        else "7 samples do not divide into batches"
    )
    with pytest.raises(ValueError, match=said):
        model.fit(x, y, batch_size=BATCH, verbose=0, validation_data=(x[:rows], y[:rows]))
    assert model.training_record.losses == []


def test_a_generator_as_validation_data():
    model, (x, y) = pipelined(), data(2)
    with pytest.raises(ValueError, match="generator"):
        model.fit(
            x,
            y,
            batch_size=BATCH,
            verbose=0,
            validation_data=(pair for pair in [(x, y)]),
            validation_steps=1,
        )


@pytest.mark.long
def test_what_is_split_off_counts_for_neither():
    """Validation takes half of four microbatches; a quarter leaves three, not divisible by two."""
    model, (x, y) = pipelined(), data(4)
    history = model.fit(x, y, batch_size=BATCH, verbose=0, validation_split=0.5).history
    assert (len(model.training_record.losses), len(history["val_loss"])) == (1, 1)
    with pytest.raises(ValueError, match="3 steps per epoch do not divide"):
        model.fit(x, y, batch_size=BATCH, verbose=0, validation_split=0.25)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_a_partial_batch_is_refused_outside_training_too(method):
    x, y = data(2)
    with pytest.raises(ValueError, match="3 samples do not divide into batches of batch_size=2"):
        getattr(pipelined(), method)(
            x[:-1], **({"y": y[:-1]} if method == "evaluate" else {}), batch_size=BATCH
        )


def test_running_eagerly_however_it_is_asked_for():
    model, (x, y) = pipelined(), data(2)
    with pytest.raises(RuntimeError, match="run_eagerly=True is not supported"):
        model.compile("sgd", "mse", None, None, None, True)
    model.run_eagerly = True
    with pytest.raises(RuntimeError, match="run_eagerly=True is not supported"):
        model.fit(x, y, batch_size=BATCH, verbose=0)


def test_callbacks_of_evaluate_run_once_per_execution():
    model, (x, y) = pipelined(), data(4)
    seen = []

    class Log(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append((batch, logs["loss"]))

    loss = model.evaluate(x, y, batch_size=BATCH, verbose=0, callbacks=[Log()])
    assert [batch for batch, _ in seen] == [1, 3], "two executions of two microbatches"
    assert seen[-1][1] == pytest.approx(loss)


def endless(microbatches):
    return (
        tf.data.Dataset.from_tensor_slices(data(microbatches))
        .batch(BATCH, drop_remainder=True)
        .repeat()
    )


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "fit with validation"])
def test_a_dataset_without_end_needs_steps(method):
    """Graphcore's raises a ValueError; without one it would run on and on."""
    model, validation = (
        pipelined(),
        {"validation_data": endless(2)} if method.endswith("validation") else {},
    )
    run = getattr(model, method.split()[0])
    given = data(2) if validation else (endless(2),)
    batch = {"batch_size": BATCH} if validation else {}
    with pytest.raises(
        ValueError,
        match="the dataset repeats without end, so its number of steps is not known",
    ):
        run(*given, **batch, **validation, verbose=0)
    assert model.training_record.losses == []


@pytest.mark.long
def test_a_dataset_without_end_with_steps():
    model = pipelined()
    model.fit(
        endless(2),
        steps_per_epoch=4,
        shuffle=False,
        validation_data=endless(2),
        validation_steps=2,
        verbose=0,
    )
    assert len(model.training_record.losses) == 2
    model.evaluate(endless(2), steps=2, verbose=0)


def test_steps_per_execution_may_be_a_dataset_s_cardinality():
    """An int64 tensor; and so may the steps of an epoch."""
    from tensorflow.python import ipu

    dataset = tf.data.Dataset.from_tensor_slices(data(4)).batch(BATCH, drop_remainder=True)
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input(data(1)[0].shape[1:], batch_size=BATCH)
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=dataset.cardinality())
        model.fit(dataset, shuffle=False, verbose=0)
        model.fit(dataset.repeat(), steps_per_epoch=dataset.cardinality(), shuffle=False, verbose=0)
    assert len(model.training_record.losses) == 8
    assert type(model.steps_per_execution) is int
