"""A model with checkpoints lists its layers, and so its weights, as the model without them does."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.models.checkpointed import checkpointed


def dense(name=None):
    return keras.layers.Dense(4, bias_initializer="normal", name=name)


def branches():
    inputs = keras.Input((4,))
    a = dense("a3")(dense("a2")(dense("a1")(inputs)))
    b = dense("b2")(dense("b1")(inputs))
    return keras.Model(inputs, keras.layers.Add()([a, b]))


def names(model):
    return [layer.name for layer in model.layers if not isinstance(layer, RecomputationCheckpoint)]


def test_two_branches_with_a_checkpoint_in_one():
    model = branches()
    ours = checkpointed(model, at=["a2"])
    assert names(ours) == names(model)
    # By their distance from the outputs.
    assert names(model)[1:-1] == [
        "a1",
        "a2",
        "b1",
        "a3",
        "b2",
    ]
    order = [layer.name for layer in ours.layers]
    assert order.index("a2_checkpoint") == order.index("a2") + 1


def test_checkpoints_that_a_model_had_count_as_in_keras():
    inputs = keras.Input((4,))
    a = dense("a3")(dense("a2")(RecomputationCheckpoint()(dense("a1")(inputs))))
    b = dense("b2")(dense("b1")(inputs))
    model = keras.Model(inputs, keras.layers.Add()([a, b]))
    assert [layer.name for layer in checkpointed(model).layers] == [
        layer.name for layer in model.layers
    ]
    assert names(checkpointed(model, at=["b1"])) == names(model)


def test_weights_go_both_ways(tmp_path):
    model, other = branches(), branches()
    ours = checkpointed(model, at=["a2", "b1"])
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    wanted = model.predict(x, verbose=0)
    assert [w.path for w in ours.weights] == [w.path for w in model.weights]

    other.set_weights(ours.get_weights())
    np.testing.assert_allclose(other.predict(x, verbose=0), wanted, rtol=1e-5)
    ours.save_weights(tmp_path / "ours.weights.h5")
    third = branches()
    third.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_allclose(third.predict(x, verbose=0), wanted, rtol=1e-5)
    model.save_weights(tmp_path / "plain.weights.h5")
    fourth = checkpointed(branches(), at=["b1"])
    fourth.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(fourth.predict(x, verbose=0), wanted, rtol=1e-5)

    ours.save(tmp_path / "ours.keras")
    again = keras.saving.load_model(tmp_path / "ours.keras")
    assert names(again) == names(model)
    np.testing.assert_allclose(again.predict(x, verbose=0), wanted, rtol=1e-5)


def model_of(steps, has_two_outputs):
    """Return a model of dense layers, one of them shared, and sums, in which any value may be read
    again later.
    """
    inputs, shared = keras.Input((4,)), dense()
    values = [inputs]
    for kind, *backwards in steps:
        first, second = (values[-min(back, len(values))] for back in backwards)
        if kind == "sum" and first is not second:
            values.append(keras.layers.Add()([first, second]))
        else:
            values.append((shared if kind == "shared" else dense())(first))
    return keras.Model(inputs, [values[-1], values[-2]] if has_two_outputs else values[-1])


STEP = st.tuples(
    st.sampled_from(["dense", "dense", "shared", "sum"]), st.integers(1, 4), st.integers(1, 4)
)


@pytest.mark.long
@given(st.lists(STEP, min_size=3, max_size=12), st.booleans(), st.integers(1, 3))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_graph(steps, has_two_outputs, every):
    model = model_of(steps, has_two_outputs)
    try:
        ours = checkpointed(model, every=every)
    except InvalidArgumentError:  # no place for a checkpoint
        return
    assert names(ours) == names(model)
    assert [w.path for w in ours.weights] == [w.path for w in model.weights]


@pytest.mark.parametrize("at", [["a1"], ["a1", "a2"], ["b1"], ["a3", "b2"]], ids="+".join)
def test_wherever_the_checkpoints_stand(at):
    model = branches()
    assert names(checkpointed(model, at=at)) == names(model)
