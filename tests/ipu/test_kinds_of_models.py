"""Functional, sequential, subclassed and nested models, and the ways to assign stages."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu.pipeline.staged_graph import staged_graph
from tests.oracle import assert_all_close

from .pipeline_oracle import stage
from .pipelines import configure, numbers

ROWS, WIDTH, STEPS = 4, 3, 4


pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture(autouse=True)
def scope():
    from tensorflow.python import ipu

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
        yield strategy


def functional(stages=(0, 0, 1)):
    inputs = x = keras.Input((WIDTH,), batch_size=ROWS)
    for units, number in zip((5, 4, 1), stages):
        with stage(number):
            x = keras.layers.Dense(units, activation="tanh")(x)
    return keras.Model(inputs, x)


def sequential():
    made = keras.Sequential([keras.layers.Dense(n, activation="tanh") for n in (5, 4, 1)])
    made.set_pipeline_stage_assignment([0, 0, 1])
    return made


class Subclassed(keras.Model):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.dense = [keras.layers.Dense(n, activation="tanh") for n in (5, 4, 1)]

    def call(self, inputs):
        with tf.keras.ipu.PipelineStage(0):
            x = self.dense[1](self.dense[0](inputs))
        with tf.keras.ipu.PipelineStage(1):
            return self.dense[2](x)


def nested():
    """A model with stages of its own inside another, and one without inside a stage."""
    inner_inputs = keras.Input((WIDTH,), batch_size=ROWS)
    with stage(0):
        x = keras.layers.Dense(5, activation="tanh")(inner_inputs)
        x = keras.layers.Dense(4, activation="tanh")(x)
    inner = keras.Model(inner_inputs, x)
    last_inputs = keras.Input((4,), batch_size=ROWS)
    last = keras.Model(last_inputs, keras.layers.Dense(1, activation="tanh")(last_inputs))
    inputs = keras.Input((WIDTH,), batch_size=ROWS)
    x = inner(inputs)
    with stage(1):
        return keras.Model(inputs, last(x))


def by_layer():
    """Layers that carry the stage they were made in; the call of the second one overrides it."""
    with stage(0):
        first = keras.layers.Dense(5, activation="tanh")
    with stage(1):
        second, third = (
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1, activation="tanh"),
        )
    inputs = keras.Input((WIDTH,), batch_size=ROWS)
    x = first(inputs)
    with stage(0):
        x = second(x)
    return keras.Model(inputs, third(x))


def assigned():
    inputs = x = keras.Input((WIDTH,), batch_size=ROWS)
    for units in (5, 4, 1):
        x = keras.layers.Dense(units, activation="tanh")(x)
    model = keras.Model(inputs, x)
    entries = model.get_pipeline_stage_assignment()
    assert [entry.pipeline_stage for entry in entries] == [None, None, None]
    for entry, number in zip(entries, (0, 0, 1)):
        entry.pipeline_stage = number
    model.set_pipeline_stage_assignment(entries)
    return model


WAYS = {
    "functional": functional,
    "sequential": sequential,
    "subclassed": Subclassed,
    "nested": nested,
    "by layer": by_layer,
    "assigned": assigned,
}


def start_weights():
    shapes = [(WIDTH, 5), (5,), (5, 4), (4,), (4, 1), (1,)]
    return [0.5 * numbers(*shape, seed=n) for n, shape in enumerate(shapes)]


@pytest.fixture(scope="module")
def by_hand():
    """Loss of each microbatch, and weights after one update by the sum of four gradients."""
    x, y, weights = (
        numbers(STEPS * ROWS, WIDTH),
        numbers(STEPS * ROWS, 1, seed=1),
        [tf.Variable(w) for w in start_weights()],
    )
    losses, total = [], None
    for m in range(STEPS):
        with tf.GradientTape() as tape:
            value = tf.constant(x[m * ROWS : (m + 1) * ROWS])
            for w, b in zip(weights[::2], weights[1::2]):
                value = tf.tanh(value @ w + b)
            loss = tf.reduce_mean((value - y[m * ROWS : (m + 1) * ROWS]) ** 2)
        gradients = tape.gradient(loss, weights)
        total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
        losses.append(float(loss))
    return x, y, losses, [w.numpy() - 0.1 * g.numpy() for w, g in zip(weights, total)]


def made_and_compiled(way, schedule="Grouped", **options):
    from tensorflow.python.ipu.pipelining_ops import PipelineSchedule

    model = WAYS[way]()
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=STEPS)
    model.set_pipelining_options(STEPS, pipeline_schedule=PipelineSchedule[schedule], **options)
    return model


@pytest.mark.parametrize("way", ["functional", "nested", "by layer", "assigned"])
def test_ways_to_say_the_stages_of_a_functional_model(way):
    model = WAYS[way]()
    calls = staged_graph(model, model.assigned_stages).calls
    assert [
        (call.operation.units, call.stage) for call in calls if hasattr(call.operation, "units")
    ][:2] == [(5, 0), (4, 0)]
    assert calls[-1].stage == 1


@pytest.mark.parametrize(
    "way",
    [
        *(pytest.param(way, marks=pytest.mark.long) for way in ("nested", "sequential")),
        "functional",
        pytest.param("subclassed", marks=pytest.mark.long(every_case=True)),
    ],
)
def test_every_kind_trains_to_the_same_numbers(by_hand, way):
    x, y, losses, after = by_hand
    model = made_and_compiled(way)
    model.build((ROWS, WIDTH))
    if way == "subclassed":
        model(x[:ROWS])  # makes the variables
    model.set_weights(start_weights())
    assert model.pipeline_stages == (0, 1)
    history = model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    assert history.history["loss"][0] == pytest.approx(np.mean(losses), rel=1e-5)
    assert_all_close(model.get_weights(), after, atol=1e-5)


@pytest.mark.parametrize("way", [pytest.param("functional", marks=pytest.mark.long), "subclassed"])
def test_kinds_that_evaluate_and_predict(by_hand, way):
    x, y, losses, _ = by_hand
    model = made_and_compiled(way)
    model(x[:ROWS])  # makes the variables
    model.set_weights(start_weights())
    seen = []

    class Log(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.append((batch, logs["outputs"].shape))

    value = x
    for w, b in zip(start_weights()[::2], start_weights()[1::2]):
        value = np.tanh(value @ w + b)
    np.testing.assert_allclose(
        model.predict(x, batch_size=ROWS, verbose=0, callbacks=[Log()]), value, atol=1e-6
    )
    assert seen == [(STEPS - 1, (STEPS * ROWS, 1))], "one execution of four microbatches"
    assert model.evaluate(x, y, batch_size=ROWS, verbose=0) == pytest.approx(
        np.mean(losses), rel=1e-5
    )


@pytest.mark.long
def test_the_gradient_of_a_running_mean_is_the_mean(by_hand):
    x, y, _, after = by_hand
    model = made_and_compiled("functional", gradient_accumulation_reduction_method="running_mean")
    model.set_weights(start_weights())
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    for ours, start, summed in zip(model.get_weights(), start_weights(), after, strict=True):
        np.testing.assert_allclose(ours, start + (summed - start) / STEPS, atol=1e-6)


@pytest.mark.long
def test_validation_in_fit(by_hand):
    x, y, _, _ = by_hand
    model = made_and_compiled("functional", "Sequential")
    history = model.fit(
        x,
        y,
        batch_size=ROWS,
        validation_data=(x, y),
        validation_batch_size=ROWS,
        epochs=2,
        verbose=0,
    )
    expected = model.evaluate(x, y, batch_size=ROWS, verbose=0)
    assert history.history["val_loss"][-1] == pytest.approx(expected, rel=1e-6)


class Plain(keras.Model):
    """Does what cannot be done symbolically; with ``staged`` in a pipeline stage."""

    def __init__(self, staged=False):
        super().__init__()
        self.staged, self.dense = staged, keras.layers.Dense(1)

    def call(self, inputs):
        if self.staged:
            with tf.keras.ipu.PipelineStage(0):
                return self.dense(tf.sin(inputs))
        return self.dense(tf.sin(inputs))


def test_a_subclassed_model_without_stages_may_do_anything():
    x, y = numbers(STEPS * ROWS, WIDTH), numbers(STEPS * ROWS, 1, seed=1)
    model = Plain()
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=STEPS)
    model.set_gradient_accumulation_options(STEPS)
    model(x[:ROWS])
    w, b = model.get_weights()
    error = np.sin(x) @ w + b - y
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        model.get_weights()[0], w - 0.1 * np.sin(x).T @ (2 * error / ROWS), rtol=1e-4, atol=1e-5
    )


class TwoInputs(keras.Model):
    """Takes a list or a dictionary of two."""

    def __init__(self):
        super().__init__()
        self.dense, self.last = keras.layers.Dense(4), keras.layers.Dense(1)

    def call(self, inputs):
        a, b = inputs.values() if isinstance(inputs, dict) else inputs
        with tf.keras.ipu.PipelineStage(0):
            x = self.dense(a)
        with tf.keras.ipu.PipelineStage(1):
            return self.last(keras.ops.concatenate([x, b], axis=-1))


@pytest.mark.parametrize(
    "shapes",
    [
        [(ROWS, WIDTH), (ROWS, 2)],
        [[ROWS, WIDTH], [ROWS, 2]],
        {"a": (ROWS, WIDTH), "b": (ROWS, 2)},
        [tf.TensorShape((ROWS, WIDTH)), tf.TensorShape((ROWS, 2))],
    ],
    ids=["tuples", "lists", "dictionary", "TensorShapes"],
)
def test_a_subclassed_model_with_two_inputs_is_built(shapes):
    model = TwoInputs()
    model.build(shapes)
    assert model.pipeline_stages == (0, 1)
    assert [e.layer for e in model.get_pipeline_stage_assignment()][:2] == [
        model.dense,
        model.last,
    ] or len(model.weights) == 4


def test_stages_in_what_cannot_be_done_symbolically():
    model = Plain(staged=True)
    model.compile("sgd", "mse", steps_per_execution=STEPS)
    model.set_pipelining_options(STEPS)
    with pytest.raises(
        NotImplementedError,
        match="'Plain' has pipeline stages, but cannot run on symbolic tensors",
    ):
        model.fit(
            numbers(STEPS * ROWS, WIDTH), numbers(STEPS * ROWS, 1), batch_size=ROWS, verbose=0
        )


class TestAssignment:
    def test_a_functional_model_s_entries(self):
        model = functional()
        entries = model.get_pipeline_stage_assignment()
        assert all(
            isinstance(e, tf.keras.ipu.FunctionalLayerPipelineStageAssignment) for e in entries
        )
        assert [(e.layer, e.node_index, e.pipeline_stage) for e in entries] == [
            (layer, 0, number) for layer, number in zip(model.layers[1:], (0, 0, 1))
        ]
        assert entries[1].inbound_layers is entries[0].layer
        model.reset_pipeline_stage_assignment()
        assert model.pipeline_stages == ()

    def test_a_subclassed_model_s_entries(self):
        model = Subclassed()
        with pytest.raises(ValueError, match="is not built"):
            model.get_pipeline_stage_assignment()
        model.build((ROWS, WIDTH))
        entries = model.get_pipeline_stage_assignment()
        assert all(isinstance(e, tf.keras.ipu.ModelLayerPipelineStageAssignment) for e in entries)
        assert [(e.layer, e.pipeline_stage) for e in entries] == list(zip(model.dense, (0, 0, 1)))

    def test_a_sequential_model_s_entries(self):
        model = sequential()
        entries = model.get_pipeline_stage_assignment()
        assert all(
            isinstance(e, tf.keras.ipu.SequentialLayerPipelineStageAssignment) for e in entries
        )
        assert [e.pipeline_stage for e in entries] == [0, 0, 1]
        model.reset_pipeline_stage_assignment()
        assert [e.pipeline_stage for e in model.get_pipeline_stage_assignment()] == [None] * 3

    def test_the_summary(self):
        lines = []
        functional().print_pipeline_stage_assignment_summary(line_length=60, print_fn=lines.append)
        assert [line.split()[-1] for line in lines if "Dense" in line] == ["0", "0", "1"]
        assert all(len(line) <= 60 for line in lines)

    @pytest.mark.parametrize(
        ("stages", "message"),
        [
            ([1, 1, 2], "start at 0"),
            ([0, 2, 2], "rise by at most one"),
            ([0, 1, 0], "rise by at most one"),
            ([0, 1], "one stage for each of the 3 layers"),
            ([0, 0, -1], "whole number from 0 on, not -1"),
            ([0, 0, "1"], "whole number from 0 on, not '1'"),
            (1, "one stage for each of the 3 layers"),
        ],
    )
    def test_stages_of_a_sequential_model_that_cannot_be(self, stages, message):
        with pytest.raises(ValueError, match=message):
            sequential().set_pipeline_stage_assignment(stages)

    def test_entries_that_do_not_fit(self):
        model, other = functional(), functional()
        entries = model.get_pipeline_stage_assignment()
        with pytest.raises(
            ValueError, match=r"not a list of FunctionalLayerPipelineStageAssignment and "
        ):
            model.set_pipeline_stage_assignment([0, 0, 1])
        with pytest.raises(ValueError, match="2 pipeline stage assignments were given for 3 calls"):
            model.set_pipeline_stage_assignment(entries[:2])
        with pytest.raises(ValueError, match="keep the order"):
            model.set_pipeline_stage_assignment(other.get_pipeline_stage_assignment())
        entries[0].pipeline_stage = None
        with pytest.raises(ValueError, match="must be a whole number from 0 on, not None"):
            model.set_pipeline_stage_assignment(entries)
