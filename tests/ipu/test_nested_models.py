"""Nested models whose layers have stages of their own: their entries, and their training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.oracle import assert_all_close

from .pipeline_oracle import stage
from .pipelines import configure, numbers

ROWS, WIDTH, STEPS = 4, 3, 4
pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture(autouse=True)
def _configured():
    configure()


def scope():
    from tensorflow.python import ipu

    return ipu.ipu_strategy.IPUStrategy().scope()


class Chain(keras.Model):
    """Calls its layers one after the other."""

    def __init__(self, chain, name=None):
        super().__init__(name=name)
        self.chain = chain

    def call(self, inputs):
        for layer in self.chain:
            inputs = layer(inputs)
        return inputs


def dense(units):
    return keras.layers.Dense(units, activation="tanh")


def chain(kind, layers, width=WIDTH):
    """Return a model of ``layers`` of the kind that is named."""
    if kind == "sequential":
        return keras.Sequential([keras.Input((width,)), *layers])
    if kind == "subclass":
        made = Chain(layers)
        made(np.zeros((ROWS, width), "float32"))
        return made
    inputs = outputs = keras.Input((width,))
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def simple(outer, inner):
    """Four layers, the second and the third in a model inside."""
    return chain(outer, [dense(5), chain(inner, [dense(4), dense(3)], 5), dense(1)])


def put(model, stages):
    """Set ``stages``, for all calls in running order, by the entries of ``model``."""
    entries = model.get_pipeline_stage_assignment()
    for entry, number in zip(leaves(entries), stages, strict=True):
        entry.pipeline_stage = number
    model.set_pipeline_stage_assignment(entries)
    return model


def leaves(entries):
    for entry in entries:
        if entry.is_nested_model:
            yield from leaves(entry.pipeline_stage_assignments)
        else:
            yield entry


def stages_of(model):
    return [entry.pipeline_stage for entry in leaves(model.get_pipeline_stage_assignment())]


KINDS = ("functional", "sequential", "subclass")
PREFIX = {"functional": "Functional", "sequential": "Sequential", "subclass": "Model"}


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
def test_entries_of_a_model_in_a_model(outer, inner):
    with scope():
        model = simple(outer, inner)
    entries = model.get_pipeline_stage_assignment()
    nested = entries[1]
    assert [entry.is_nested_model for entry in entries] == [False, True, False]
    assert (
        type(nested).__name__
        == PREFIX[outer].replace("Model", "") + "NestedModelPipelineStageAssignment"
    )
    assert {type(e).__name__ for e in nested.pipeline_stage_assignments} == {
        f"{PREFIX[inner]}LayerPipelineStageAssignment"
    }
    assert stages_of(model) == [None] * 4
    put(model, [0, 1, 2, 3])
    assert stages_of(model) == [0, 1, 2, 3]
    assert model.pipeline_stages == (0, 1, 2, 3)
    assert stages_of(nested.nested_model) == [None] * 2, "the model inside keeps what it has"
    model.reset_pipeline_stage_assignment()
    assert model.pipeline_stages == ()


def test_the_model_inside_brings_its_own_stages():
    with scope():
        inner = put(chain("functional", [dense(4), dense(3)], 5), [1, 2])
        with stage(0):
            first = dense(5)
        with stage(2):
            last = dense(1)
        model = chain("functional", [first, inner, last])
    assert stages_of(model) == [0, 1, 2, 2]
    assert model.pipeline_stages == (0, 1, 2)
    model.reset_pipeline_stage_assignment()
    assert (stages_of(model), model.pipeline_stages) == ([None] * 4, ())
    assert stages_of(inner) == [1, 2]


def test_the_summary_has_the_models_inside():
    with scope():
        model = put(simple("functional", "sequential"), [0, 0, 1, 1])
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert [line.split()[-1] for line in lines if "Dense" in line] == ["0", "0", "1", "1"]
    assert [line for line in lines if "Sequential" in line]


def test_a_number_for_a_model_is_that_of_its_layers():
    with scope():
        model = simple("sequential", "sequential")
    model.set_pipeline_stage_assignment([0, 1, 2])
    assert stages_of(model) == [0, 1, 1, 2]


def test_stages_of_another_number_of_layers():
    with scope():
        model = put(simple("sequential", "functional"), [0, 0, 1, 1])
        model.add(dense(1))
    with pytest.raises(
        ValueError,
        match=r"3 pipeline stages were set .* now has 4 calls of layers: call set_pipeline",
    ):
        _ = model.pipeline_stages


def test_entries_that_do_not_fit():
    with scope():
        model = simple("functional", "functional")
    inner = model.layers[2]
    entries = put(model, [0, 0, 1, 1]).get_pipeline_stage_assignment()
    with pytest.raises(
        ValueError,
        match=f"layer {inner.layers[1].name!r} must be a whole number from 0 on, not None",
    ):
        put(model, [0, None, 1, 1])
    flat = [entries[0], type(entries[0])(inner, 0, 1), entries[2]]
    with pytest.raises(ValueError, match="needs a FunctionalNestedModelPipelineStageAssignment"):
        model.set_pipeline_stage_assignment(flat)


def trained_as_plain(make, stages, x, y, mapping=None, schedule="Grouped"):
    """Train ``make()`` in the scope, in ``stages``, and outside it by hand; compare the numbers."""
    from tensorflow.python.ipu.pipelining_ops import PipelineSchedule

    plain = make()
    with scope():
        model = make()
        put(model, stages)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=STEPS)
        model.set_pipelining_options(
            STEPS, device_mapping=mapping, pipeline_schedule=PipelineSchedule[schedule]
        )
        assert model.pipeline_stages == tuple(range(1 + max(stages)))
        model.set_weights(plain.get_weights())
    for _ in range(2):
        total = None
        for m in range(STEPS):
            rows = slice(m * ROWS, (m + 1) * ROWS)
            part = [a[rows] for a in x] if isinstance(x, list) else x[rows]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(part, training=True) - y[rows]) ** 2)
            gradients = tape.gradient(loss, plain.trainable_variables)
            total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
        keras.optimizers.SGD(0.1).apply_gradients(zip(total, plain.trainable_variables))
    model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    assert_all_close(model.get_weights(), plain.get_weights(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model.predict(x, batch_size=ROWS, verbose=0), plain(x).numpy(), rtol=1e-4, atol=1e-6
    )


X, Y = numbers(STEPS * ROWS, WIDTH), numbers(STEPS * ROWS, 1, seed=1)


@pytest.mark.parametrize(
    ("outer", "inner", "schedule"),
    [
        ("functional", "sequential", "Sequential"),
        pytest.param("functional", "sequential", "Grouped", marks=pytest.mark.long),
        pytest.param("functional", "sequential", "Interleaved", marks=pytest.mark.long),
        pytest.param("functional", "functional", "Interleaved", marks=pytest.mark.long),
        pytest.param("sequential", "functional", "Sequential", marks=pytest.mark.long),
        pytest.param("functional", "subclass", "Interleaved", marks=pytest.mark.long),
        pytest.param("subclass", "functional", "Grouped", marks=pytest.mark.long),
    ],
)
def test_a_model_across_stages_trains(outer, inner, schedule):
    trained_as_plain(lambda: simple(outer, inner), [0, 0, 1, 1], X, Y, schedule=schedule)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stages", "schedule"), [([0, 0, 0, 1, 1], "Grouped"), ([0, 1, 1, 2, 2], "Sequential")]
)
def test_each_call_of_one_model_has_its_own_stages(stages, schedule):
    """Also where the same layer of both calls hands on to another stage."""

    def make():
        inputs = keras.Input((WIDTH,))
        twice = chain("functional", [dense(WIDTH), dense(WIDTH)])
        return keras.Model(inputs, dense(1)(twice(twice(inputs))))

    trained_as_plain(make, stages, X, Y, mapping=[0] * (1 + max(stages)), schedule=schedule)


@pytest.mark.long
def test_a_model_with_inputs_from_several_stages_and_one_in_it():
    def make():
        a, b = keras.Input((5,)), keras.Input((4,))
        first = chain("sequential", [dense(4), dense(4)], 5)(a)
        inner = keras.Model([a, b], keras.layers.Add()([dense(3)(first), dense(3)(b)]))
        x, z = keras.Input((WIDTH,)), keras.Input((2,))
        return keras.Model([x, z], dense(1)(inner([dense(5)(x), dense(4)(z)])))

    with scope():
        names = [
            entry.layer.units
            for entry in leaves(make().get_pipeline_stage_assignment())
            if hasattr(entry.layer, "units")
        ]
    # The second input of the model inside is made in the stage in which its first one has been read
    # already.
    assert sorted(names[:2]) == [4, 5]
    stages = [1 if units == 4 else 0 for units in names[:2]] + [0, 1, 1, 1, 1, 1]
    trained_as_plain(make, stages, [X, numbers(STEPS * ROWS, 2, seed=2)], Y)


@pytest.mark.long
def test_a_model_that_turns_its_inputs_into_its_own_type():
    """Whole numbers, which cut off what is behind the point: two more layers would not do that."""

    def make():
        inputs, inside = keras.Input((WIDTH,)), keras.Input((WIDTH,), dtype="int32")
        inner = keras.Model(inside, dense(4)(keras.layers.Rescaling(0.5)(inside)))
        return keras.Model(inputs, dense(1)(inner(inputs)))

    trained_as_plain(make, [0, 1, 1], 5 * X, Y)


def test_a_model_that_only_runs_as_a_whole():
    class Twice(keras.Model):
        """Functional inside, and more than its graph."""

        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    with scope():
        inputs = keras.Input((WIDTH,))
        outputs = dense(4)(dense(4)(inputs))
        inner = Twice(inputs, outputs)
        np.testing.assert_allclose(inner(X), 2 * keras.Model(inputs, outputs)(X).numpy())
        model = put(keras.Model(inputs, dense(1)(inner(inputs))), [0, 1, 1])
    with pytest.raises(
        NotImplementedError,
        match="is in several pipeline stages, but its masks, arguments or own call",
    ):
        _ = model.pipeline_stages


def test_what_a_class_of_its_own_was_given_is_kept():
    with scope():
        model = put(chain("subclass", [dense(4), dense(1)]), [0, 1])
        model.compile("sgd", "mse", steps_per_execution=STEPS)
    assert (stages_of(model), model.pipeline_stages) == ([0, 1], (0, 1))


def test_models_made_outside_are_one_layer():
    outside = chain("functional", [dense(4), dense(4)])
    with scope():
        model = chain("functional", [outside, dense(1)])
    assert [entry.is_nested_model for entry in model.get_pipeline_stage_assignment()] == [
        False,
        False,
    ]
    put(model, [0, 1])
    assert model.pipeline_stages == (0, 1)
