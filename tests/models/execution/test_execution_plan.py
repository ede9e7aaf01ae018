"""Where a model is cut, which sections are equal, and what a run of them gives back: exactly.

Looks at the plan: a model cut in another place computes the same numbers, and takes more memory
only where it is large.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

from keras_recompute.engine.scan.section_scan import (
    Carry,
    Constant,
    FinalOutput,
    Scanned,
    StackedOutput,
)
from keras_recompute.errors import RecomputeWarning
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.layers.recurrent import GRU, LSTM
from keras_recompute.layers.time_slice import TimeSlice
from keras_recompute.models.classes.model import Model
from keras_recompute.models.keras_graph.section_loops import SectionLoop

from ..networks import (
    FEATURES,
    UNITS,
    convolutional,
    dense_chain,
    mark,
    normalised_head,
    recurrent,
    several,
    shared_dense,
    skips,
)


def layers_of(step) -> list[str]:
    calls = step.calls
    return [
        type(call.operation).__name__
        for call in calls
        if type(call.operation).__name__ != "RecomputationCheckpoint"
    ]


def shape_of(plan) -> list[tuple[str, int, list[str]]]:
    """Return for each step its name, the number of sections and the layers of one of them."""
    return [
        (name, len(s.sections) if isinstance(s, SectionLoop) else 1, layers_of(s))
        for name, s in plan.named_steps
    ]


def test_a_chain_is_cut_at_its_checkpoints():
    assert shape_of(dense_chain(Model, 3).plan) == [
        ("section-0", 1, ["Dense"]),
        ("section-1", 1, ["Dense"]),
        ("section-2", 1, ["Dense"]),
        ("", 1, ["Dense"]),  # behind the last checkpoint: not recomputed
    ]


def test_what_crosses_a_border_is_kept_also_past_checkpoints():
    steps = skips(Model).plan.steps
    # a and b, then c, then d: the first section also hands on a, which only later sections read
    assert [len(step.outputs) for step in steps] == [2, 1, 1, 1]
    assert [len(step.inputs) for step in steps] == [1, 2, 2, 3]


def test_outputs_of_the_model_are_kept():
    model = several(Model)
    (section, rest) = model.plan.steps
    assert section.recomputed
    assert not rest.recomputed
    assert len(section.outputs) == 2, (
        "what is marked, and the sum that the output in the middle is made of"
    )
    assert model.plan.graph.outputs == tuple(id(t) for t in model.outputs)


@pytest.mark.parametrize("cell", [LSTM, GRU, keras.layers.LSTM])
@pytest.mark.parametrize("checkpoints", [3, 7])
def test_equal_recurrent_sections_are_one_run(cell, checkpoints):
    plan = recurrent(Model, checkpoints, cell=cell, length=8).plan
    name, count, layers = shape_of(plan)[0]
    assert count == checkpoints, (
        "all sections but the last, behind the last checkpoint, which is not recomputed"
    )
    assert layers == [cell.__name__, "Dense"], (
        "the loop slices, and the head treats every timestep alone"
    )
    assert name == f"sections-0-{checkpoints - 1}"
    (run, *_) = plan.steps
    states = 1 if cell is GRU else 2
    length = 8 // (checkpoints + 1)
    assert run.roles == (
        Scanned(axis=1, start=0, length=length),
        *(Carry(n) for n in range(states)),
    )
    assert [type(r) for r in run.requests if isinstance(r, FinalOutput)] == [FinalOutput] * states
    assert [r.axis for r in run.requests if isinstance(r, StackedOutput)] == [1], (
        "the outputs are joined where the loop makes them"
    )


def test_uneven_lengths_are_a_run_for_each_length():
    plan = recurrent(Model, lengths=[2, 2, 1, 1, 1, 1]).plan
    assert [(name, count) for name, count, _ in shape_of(plan) if name] == [
        ("sections-0-1", 2),
        ("sections-2-4", 3),
    ]
    assert [run.roles[0] for run in plan.steps if isinstance(run, SectionLoop)] == [
        Scanned(1, 0, 2),
        Scanned(1, 4, 1),
    ]


def test_a_gap_between_slices_parts_a_run():
    inputs = keras.Input((10, FEATURES))
    layer = LSTM(UNITS, return_sequences=True, return_state=True)
    state, outputs = None, []
    for begin in (0, 2, 6, 8):  # the steps 4 and 5 are left out
        output, *state = layer(TimeSlice(begin, begin + 2)(inputs), initial_state=state)
        outputs.append(output)
        state = mark(state)
    last = layer(inputs[:, 9:], initial_state=state)[0]
    model = Model(inputs, keras.layers.Concatenate(axis=1)([*outputs, last]))
    assert [(name, count) for name, count, _ in shape_of(model.plan) if name] == [
        ("sections-0-1", 2),
        ("sections-2-3", 2),
    ]


def test_last_outputs_alone_are_not_collected():
    plan = recurrent(Model, 3, last_only=True).plan
    (run, *_) = plan.steps
    assert all(isinstance(request, FinalOutput) for request in run.requests)


def test_a_section_that_makes_the_first_state_stands_apart():
    # the first section also makes that state
    plan = recurrent(Model, 3, first_state=True).plan
    assert [count for name, count, _ in shape_of(plan) if name] == [1, 2]


def test_a_layer_for_single_timesteps_moves_into_the_sections():
    (run, rest) = recurrent(Model, 3, head=normalised_head).plan.steps
    assert layers_of(run) == ["LSTM", "LayerNormalization", "Activation", "Dense"]
    # the last section, which is not recomputed, does its own share; then there is nothing left to
    # do to the whole
    assert layers_of(rest) == [
        "TimeSlice",
        "LSTM",
        "LayerNormalization",
        "Activation",
        "Dense",
        "Concatenation",
    ]


def over_time(x):
    return keras.ops.cumsum(x, axis=1)


class DenseOverTime(keras.layers.Dense):
    def call(self, inputs):
        return over_time(super().call(inputs))


@pytest.mark.parametrize(
    "head",
    [
        lambda: keras.layers.LayerNormalization(axis=1),
        keras.layers.BatchNormalization,
        lambda: keras.layers.Conv1D(2, 2),
        lambda: keras.layers.Softmax(axis=1),
        lambda: keras.layers.Activation(over_time),
        lambda: keras.layers.Dense(2, activation=over_time),
        lambda: DenseOverTime(2),
    ],
    ids=[
        "norm",
        "batch norm",
        "convolution",
        "softmax",
        "activation",
        "activation of a layer",
        "subclass",
    ],
)
def test_a_layer_that_mixes_timesteps_stays_behind_them(head):
    (run, *_) = recurrent(Model, 3, head=head()).plan.steps
    assert layers_of(run) == ["LSTM"]


def test_a_concatenation_that_is_read_twice_stays():
    def head(x):
        return keras.layers.Add()([keras.layers.Dense(UNITS)(x), x])

    (run, *_) = recurrent(Model, 3, head=head).plan.steps
    assert layers_of(run) == ["LSTM"]
    assert [r.axis for r in run.requests if isinstance(r, StackedOutput)] == [1]


def test_shared_layers_make_equal_sections():
    plan = shared_dense(Model, 5).plan
    # the first section also holds the layer in front, so it differs
    assert [(name, count, layers) for name, count, layers in shape_of(plan)] == [
        ("section-0", 1, ["Dense", "Dense"]),
        ("sections-1-4", 4, ["Dense"]),
        ("", 1, ["Dense"]),
    ]


def test_a_value_that_all_sections_read_is_shared():
    inputs = keras.Input((UNITS,))
    x = mark(keras.layers.Dense(UNITS)(inputs))
    gate = keras.layers.Dense(UNITS, activation="sigmoid")
    add, first = keras.layers.Add(), x
    for _ in range(3):
        x = mark(add([gate(x), first]))
    run = next(
        step
        for step in Model(inputs, keras.layers.Dense(1)(x)).plan.steps
        if isinstance(step, SectionLoop)
    )
    assert set(run.roles) == {Carry(0), Constant()}


def test_different_layers_are_different_sections():
    assert not any(isinstance(step, SectionLoop) for step in convolutional(Model).plan.steps)


def test_different_call_arguments_are_different_sections():
    inputs = keras.Input((4, UNITS))
    attend = keras.layers.MultiHeadAttention(1, 2)
    x = mark(keras.layers.Dense(UNITS)(inputs))
    for causal in (True, True, False, False):
        x = mark(attend(x, x, use_causal_mask=causal))
    plan = Model(inputs, keras.layers.Dense(1)(x)).plan
    assert [count for name, count, _ in shape_of(plan) if name] == [1, 2, 2]


def test_a_model_without_checkpoints_recomputes_nothing():
    inputs = keras.Input((3,))
    plan = Model(inputs, keras.layers.Dense(1)(inputs)).plan
    assert not plan.recomputes


@pytest.mark.parametrize("where", ["on the input", "on the output"])
def test_checkpoints_that_save_nothing_are_said(where):
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(1)
    outputs = dense(mark(inputs)) if where == "on the input" else mark(dense(inputs))
    with pytest.warns(
        RecomputeWarning,
        match=r"none of the 1 RecomputationCheckpoint layers of 'useless' saves memory",
    ):
        Model(inputs, outputs, name="useless")


X = np.ones((2, 8, FEATURES), "float32")


@pytest.mark.long
def test_save_and_load(tmp_path):
    model = recurrent(Model, 3)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(X, np.ones((2, 8, 2)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is Model
    assert shape_of(loaded.plan) == shape_of(model.plan)
    np.testing.assert_array_equal(loaded(X), model(X))
    histories = [
        m.fit(X, np.ones((2, 8, 2)), epochs=2, verbose=0).history["loss"] for m in (model, loaded)
    ]
    np.testing.assert_allclose(*histories, rtol=1e-6)


@pytest.mark.long
def test_clone_model():
    model = recurrent(Model, 3)
    clone = keras.models.clone_model(model)
    assert type(clone) is Model
    assert shape_of(clone.plan) == shape_of(model.plan)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(X, training=True), model(X, training=True))
    assert clone.recomputation_levels == 1
    model.recomputation_levels = 2
    assert keras.models.clone_model(model).recomputation_levels == 2


class Deep(Model):
    """Has a constructor of its own."""

    def __init__(self, depth=4, **options):
        x = inputs = keras.Input((6,))
        for _ in range(depth):
            x = RecomputationCheckpoint()(keras.layers.Dense(6, "gelu")(x))
        super().__init__(inputs, keras.layers.Dense(1)(x), **options)


class Scaled(Model):
    def __init__(self, inputs, outputs, scale=2.0, **options):
        super().__init__(inputs, outputs, **options)
        self.scale = scale


def scaled():
    deep = Deep()
    return Scaled(deep.input, deep.output)


@pytest.mark.parametrize("make", [Deep, scaled])
def test_a_clone_of_a_class_with_a_constructor_of_its_own_says_how_it_recomputes(make):
    """As in plain Keras the clone is a functional model."""
    model = make()
    x = np.ones((2, 6), np.float32)
    with pytest.warns(RecomputeWarning, match=r"is its own: .* keras_recompute\.Model\(clone"):
        clone = keras.models.clone_model(model)
    assert type(clone) is not type(model)
    again = Model(clone.input, clone.output)
    assert again.plan.recomputes
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(again(x, training=True), model(x), rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        keras.models.clone_model(again)
        Model(model.input, model(model.input))  # a model inside another one is no clone
