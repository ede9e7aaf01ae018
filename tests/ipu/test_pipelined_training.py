"""A pipelined model trains to the numbers of the same layers trained by hand.

What checkpoints save: tests of the example.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.oracle import assert_all_close

from .pipelines import BATCH, FEATURES, LENGTH, data, pipelined, train_by_hand

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.mark.parametrize(
    ("stages", "checkpoints", "steps", "accumulation", "optimizer", "method"),
    [
        pytest.param(2, 2, 4, 2, keras.optimizers.SGD, "sum", marks=pytest.mark.long),
        pytest.param(3, 3, 2, 2, keras.optimizers.Adam, "sum", marks=pytest.mark.long),
        pytest.param(
            2, 0, 3, 3, keras.optimizers.SGD, "mean", marks=pytest.mark.long
        ),  # the others sum: Graphcore's default
        (2, 2, 1, 1, keras.optimizers.SGD, "sum"),
    ],
)
def test_training_equals_the_layers_trained_by_hand(
    stages, checkpoints, steps, accumulation, optimizer, method
):
    """Eight updates of accumulated gradients, within 1e-5 in losses, gradient norms and weights."""
    x, y = data(8 * accumulation)
    model = pipelined(
        stages,
        checkpoints,
        steps=steps,
        accumulation=accumulation,
        optimizer=optimizer(0.05),
        gradient_accumulation_reduction_method=method,
    )
    before = model.get_weights()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    after = model.get_weights()
    losses, norms, weights = train_by_hand(
        model, before, optimizer(0.05), x, y, accumulation=accumulation, mean=method == "mean"
    )
    assert len(losses) == 8
    np.testing.assert_allclose(model.training_record.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(model.training_record.gradient_norms, norms, rtol=1e-5)
    for a, b, start in zip(after, weights, before, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert np.abs(b - start).max() > 1e-3, "a weight was not trained"


@pytest.fixture(scope="module")
def fitted():
    """Two epochs of four executions of two microbatches, with and without recomputation."""
    x, y = data(8)
    made = {}
    for recompute in (False, True):
        calls = []

        class Log(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, calls=calls):
                calls.append((batch, logs["loss"]))

        model = pipelined(checkpoints=2, recompute=recompute)
        history = model.fit(
            x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[Log()]
        )
        made[recompute] = model, history.history["loss"], calls
    return made


@pytest.mark.long
def test_recomputation_changes_no_number(fitted):
    (plain, plain_losses, _), (ours, losses, _) = fitted[False], fitted[True]
    assert any(plan.recomputes for plan in ours.pipeline.stages.plans)
    assert not any(plan.recomputes for plan in plain.pipeline.stages.plans)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
    np.testing.assert_allclose(
        ours.training_record.gradient_norms, plain.training_record.gradient_norms, rtol=1e-5
    )
    assert_all_close(ours.get_weights(), plain.get_weights(), atol=1e-6)


@pytest.mark.long
def test_callbacks_run_once_per_execution_with_the_running_metrics(fitted):
    model, losses, calls = fitted[True]
    assert len(calls) == 2 * 8 // 2, "two epochs of eight steps, two steps per execution"
    record = np.array(model.training_record.losses).reshape(
        2, 4
    )  # one loss per update, an update per execution
    running = np.cumsum(record, axis=1) / np.arange(1, 5)
    np.testing.assert_allclose([loss for _, loss in calls], running.ravel(), rtol=1e-5)
    np.testing.assert_allclose(losses, running[:, -1], rtol=1e-5)


@pytest.mark.long
def test_the_record_has_one_entry_per_update(fitted):
    model, _, _ = fitted[True]
    assert len(model.training_record.losses) == len(model.training_record.gradient_norms) == 8
    assert int(model.optimizer.iterations) == 8


def test_the_record_of_a_model_that_was_not_trained_is_empty():
    record = pipelined().training_record
    assert (record.losses, record.gradient_norms) == ([], [])


def test_all_stages_but_the_last_are_recomputed():
    plans = pipelined(3, 2).pipeline.stages.plans
    unnamed = [[step for name, step in plan.named_steps if not name] for plan in plans]
    assert [plan.recomputes for plan in plans] == [True, True, False]
    assert unnamed[2], "the last stage has no checkpoint, so it is not recomputed"
    assert {call.stage for step in unnamed[2] for call in step.calls} == {2}


def test_an_unpipelined_model_accumulates_too():
    from tensorflow.python import ipu

    x, y = data(4)
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((LENGTH, FEATURES), batch_size=BATCH)
        keras.utils.set_random_seed(1)
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    before = model.get_weights()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    losses, norms, _ = train_by_hand(model, before, keras.optimizers.SGD(0.1), x, y, accumulation=2)
    np.testing.assert_allclose(model.training_record.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(model.training_record.gradient_norms, norms, rtol=1e-5)


@pytest.mark.long
def test_doubles_become_singles():
    x, y = data(2)
    model = pipelined()
    model.fit(x.astype("float64"), y.astype("float64"), batch_size=BATCH, shuffle=False, verbose=0)
    assert all(w.dtype == np.float32 for w in model.get_weights())
