"""Checkpoints beside the graph: the model lists and shows what the model without them does.

Copies of it, and models that are built on it, have them too.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.models.classes.checkpoint_placement import placement_of_rounds

from ..networks import numbers
from ..same_training import assert_agree, training_pass

L = keras.layers


def dense(name=None):
    return L.Dense(4, "tanh", bias_initializer="normal", name=name)


def branches():
    inputs = keras.Input((4,))
    a = dense("a3")(dense("a2")(dense("a1")(inputs)))
    b = dense("b2")(dense("b1")(inputs))
    return keras.Model(inputs, L.Add(name="sum")([a, b]))


def chain(layers, name=None):
    x = inputs = keras.Input((4,))
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x, name=name)


def names(model):
    return [layer.name for layer in model.layers]


def sections(model):
    return [[call.operation.name for call in step.calls] for step in model.plan.steps]


@pytest.mark.parametrize("at", [["a1"], ["a1", "a2"], ["b1"], ["a3", "b2"]], ids="+".join)
def test_a_model_lists_the_layers_and_weights_of_the_plain_one(at):
    model = branches()
    ours = kr.checkpointed(model, at=at)
    assert type(ours) is kr.Model
    assert ours.layers == model.layers
    assert list(map(id, ours.weights)) == list(map(id, model.weights))
    assert set(ours.plan.checkpoints) == set(at)
    shown = []
    ours.summary(print_fn=shown.append)
    assert "heckpoint" not in "".join(shown)


def test_checkpoint_layers_of_the_model_stay_and_are_listed():
    inputs = keras.Input((4,))
    a = dense("a3")(dense("a2")(kr.RecomputationCheckpoint(name="mark")(dense("a1")(inputs))))
    b = dense("b2")(dense("b1")(inputs))
    model = keras.Model(inputs, L.Add()([a, b]))
    ours = kr.checkpointed(model, at=["b1"])
    assert names(ours) == names(kr.checkpointed(model)) == names(model)
    assert set(ours.plan.checkpoints) == {"mark", "b1"}


def test_attributes_of_the_model_come_along():
    model = branches()
    model.of_ours, model.plan = "kept", "a name that the class of the result has"
    model.trainable = False
    ours = kr.checkpointed(model, at=["a1"])
    assert ours.of_ours == "kept"
    assert not ours.trainable


def test_weights_go_both_ways(tmp_path):
    model, other = branches(), branches()
    ours = kr.checkpointed(model, at=["a2", "b1"])
    x = numbers(3, 4)
    wanted = model.predict(x, verbose=0)
    other.set_weights(ours.get_weights())
    np.testing.assert_allclose(other.predict(x, verbose=0), wanted, rtol=1e-5)
    ours.save_weights(tmp_path / "ours.weights.h5")
    third = branches()
    third.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_allclose(third.predict(x, verbose=0), wanted, rtol=1e-5)
    model.save_weights(tmp_path / "plain.weights.h5")
    fourth = kr.checkpointed(branches(), at=["b1"])
    fourth.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(fourth.predict(x, verbose=0), wanted, rtol=1e-5)


STEP = st.tuples(
    st.sampled_from(["dense", "dense", "shared", "sum", "model"]),
    st.integers(1, 4),
    st.integers(1, 4),
)


def model_of(steps, has_two_outputs):
    """Return a model of dense layers, a shared one, sums and a model; any value may be read again
    later.
    """
    inputs, shared = keras.Input((4,)), dense()
    inner = chain([dense(), dense()])
    values = [inputs]
    for kind, *backwards in steps:
        first, second = (values[-min(back, len(values))] for back in backwards)
        if kind == "sum" and first is not second:
            values.append(L.Add()([first, second]))
        else:
            values.append({"shared": shared, "model": inner}.get(kind, dense())(first))
    return keras.Model(inputs, [values[-1], values[-2]] if has_two_outputs else values[-1])


@pytest.mark.long
@given(st.lists(STEP, min_size=3, max_size=12), st.booleans(), st.integers(1, 3))
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_copies_of_any_graph_have_its_sections(steps, has_two_outputs, every):
    model = model_of(steps, has_two_outputs)
    try:
        ours = kr.checkpointed(model, every=every)
    except InvalidArgumentError:  # no place for a checkpoint
        return
    assert ours.layers == model.layers
    assert len(ours.plan.checkpoints) > 0
    loaded = type(ours).from_config(ours.get_config())
    for copy in (loaded, keras.models.clone_model(ours)):
        assert names(copy)[1:] == names(model)[1:]  # a clone has a new input
        assert sections(copy) == sections(ours)
        assert copy.plan.checkpoints == ours.plan.checkpoints


def test_a_head_on_the_outputs_keeps_the_checkpoints():
    """As the graph does that has them as layers; also a head on that head, and a copy of it."""
    ours = kr.checkpointed(branches(), at=["a2", "b1"])
    head = kr.Model(ours.input, L.Dense(1, name="head")(ours.output))
    assert sections(head)[:-1] == sections(ours)[:-1]
    assert sections(head)[-1] == [*sections(ours)[-1], "head"]
    again = kr.Model(head.input, L.Dense(1, name="again")(head.output))
    for model in (again, keras.models.clone_model(again)):
        assert sections(model)[-1][-2:] == ["head", "again"]
        assert model.plan.checkpoints == ours.plan.checkpoints


def test_a_head_keeps_the_checkpoints_inside_a_model():
    inner = chain(map(dense, ["i1", "i2", "i3", "i4"]))
    ours = kr.checkpointed(chain([dense("first"), inner, dense("last")]), every=2)
    head = kr.Model(ours.input, L.Dense(1, name="head")(ours.output))
    assert "i1" in ours.plan.checkpoints
    assert head.plan.checkpoints == ours.plan.checkpoints


def test_a_model_that_calls_a_checkpointed_one_has_no_checkpoints_of_its_own():
    ours = kr.checkpointed(branches(), at=["a2", "b1"])
    ours.recomputation_levels = 2
    inputs = keras.Input(batch_shape=(2, 4))  # another shape: Keras goes through the graph
    outer = kr.Model(inputs, ours(L.Identity()(inputs)))
    assert outer.plan.checkpoints == ()
    assert outer.recomputation_levels == 1


def test_a_clone_on_other_inputs_keeps_the_checkpoints():
    ours = kr.checkpointed(branches(), at=["a2", "b1"])
    inputs = keras.Input((4,))
    for given_inputs in (inputs, L.Identity()(inputs)):
        clone = keras.models.clone_model(ours, input_tensors=given_inputs)
        assert clone.plan.checkpoints == ours.plan.checkpoints
        assert sections(clone) == sections(ours)


def test_checkpoints_of_every_and_of_at_are_put_together():
    def network():
        inner = chain(map(dense, "abcd"), name="inner")
        return chain([dense("first"), inner, dense("last"), dense("end")])

    both = kr.checkpointed(kr.checkpointed(network(), at=["inner"]), every=2)
    assert "d" in both.plan.checkpoints, "the layer that makes the result of the model inside"
    assert set(kr.checkpointed(network(), every=2).plan.checkpoints) < {*both.plan.checkpoints}
    twice = kr.checkpointed(kr.checkpointed(network(), every=2), every=2)
    assert twice.plan.checkpoints == kr.checkpointed(network(), every=2).plan.checkpoints


def test_a_checkpoint_changes_no_type():
    """A layer would cast its inputs to the type of the policy where it is made."""

    def network():
        x = inputs = keras.Input((4,))
        for number in range(4):
            policy = "mixed_float16" if number in (0, 3) else "float32"
            x = L.Dense(4, "tanh", dtype=policy, name=f"d{number}")(x)
        return keras.Model(inputs, x)

    passes = []
    for change in (lambda model: model, lambda model: kr.checkpointed(model, at=["d1"])):
        keras.utils.set_random_seed(1)
        plain = network()
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = change(plain)
        finally:
            keras.config.set_dtype_policy("float32")
        passes.append(training_pass(model, [numbers(3, 4)], mode="graph"))
    assert_agree(*passes)


def test_rounds_of_earlier_versions():
    """The second round counts the checkpoints of the first among the calls."""

    def positions(is_open, checkpoints):
        return placement_of_rounds(is_open, checkpoints, opens_sequential=False).positions

    assert positions(True, [[1, 3]]) == (1, 3)
    # Calls 0, 1, checkpoint, 2, 3, checkpoint, 4: positions 0, 4 and 6 are calls 0, 3 and 4.
    assert positions(True, [[1, 3], [0, 4, 6]]) == (0, 1, 3, 4)
    # Position 2 is a checkpoint, behind call 1.
    assert positions(True, [[1], [2]]) == (1,)
    assert positions(False, []) == ()


@pytest.mark.parametrize(
    ("name", "checkpoints", "levels", "sections_count"),
    [
        # Inserted layers: on two branches, on all results of a layer, a layer that is used twice,
        # and a model inside.
        pytest.param(
            *("branches", {"lstm", "a2", "twice", "inner"}, 2, 6),
            marks=pytest.mark.long(every_case=True),
        ),
        # Beside the graph: of two calls of ``checkpointed``, in a model inside too.
        ("nested", {"b", "c", "d", "f", "g", "h"}, 1, 7),
    ],
)
def test_a_model_of_an_earlier_version_goes_on_training(
    tmp_path, name, checkpoints, levels, sections_count
):
    """What 0.2.0 trained them to after it had saved them is in the file."""
    with zipfile.ZipFile(Path(__file__).parents[1] / "saves" / "models_0_2_0.zip") as archive:
        archive.extractall(tmp_path)
    with np.load(tmp_path / f"{name}.npz") as saved:
        expected = dict(saved)
    model = keras.saving.load_model(tmp_path / f"{name}.keras")
    assert type(model) is kr.Model
    assert set(model.plan.checkpoints) == checkpoints
    assert not any(isinstance(layer, kr.RecomputationCheckpoint) for layer in model.layers)
    assert model.recomputation_levels == levels
    assert len(model.plan.steps) == sections_count
    x, y = expected["x"], expected["t"]
    np.testing.assert_allclose(model.predict(x, verbose=0), expected["predicted"], rtol=1e-5)
    model.save(tmp_path / "again.keras")
    for each in (model, keras.saving.load_model(tmp_path / "again.keras")):
        found = each.fit(x, y, epochs=2, batch_size=4, shuffle=False, verbose=0)
        np.testing.assert_allclose(found.history["loss"], expected["losses"], rtol=1e-4)
        assert each.plan.checkpoints == model.plan.checkpoints
