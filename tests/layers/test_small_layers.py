"""RecomputationCheckpoint and TimeSlice."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.layers.time_slice import TimeSlice

A, B = tf.constant([[1.0, 2.0]]), tf.constant([[3]])
NESTS = {
    "tensor": A,
    "list": [A, B],
    "tuple": (A, B),
    "dict": {"a": A, "b": B},
    "deep": {"a": [A, (B, A)], "b": B},
}


@pytest.mark.parametrize("name", NESTS)
def test_a_checkpoint_returns_any_nest_as_it_is(name):
    nest = NESTS[name]
    returned = RecomputationCheckpoint()(nest)
    tf.nest.assert_same_structure(returned, nest)
    for out, given in zip(tf.nest.flatten(returned), tf.nest.flatten(nest), strict=True):
        assert out.dtype == given.dtype
        np.testing.assert_array_equal(out, given)


def test_a_checkpoint_of_symbolic_nests():
    h, c = keras.Input((4,)), keras.Input((3,), dtype="int32")
    out = RecomputationCheckpoint(name="mark")({"h": h, "c": [c]})
    assert out["h"].shape == (None, 4)
    assert out["c"][0].dtype == "int32"
    model = keras.Model([h, c], [out["h"], out["c"][0]])
    values = [np.ones((2, 4), "float32"), np.ones((2, 3), "int32")]
    for a, b in zip(model(values), values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_has_no_weights_and_only_keras_s_config():
    layer = RecomputationCheckpoint(name="mark")
    layer(tf.ones((1, 2)))
    assert layer.weights == []
    own = set(layer.get_config()) - set(keras.layers.Layer().get_config())
    assert own == set()
    assert RecomputationCheckpoint.from_config(layer.get_config()).name == "mark"


def test_a_checkpoint_passes_integers_and_half_precision_as_they_are():
    layer = RecomputationCheckpoint(dtype="mixed_float16")
    assert layer(tf.constant([1], tf.int64)).dtype == tf.int64


def test_a_checkpoint_passes_masks_on():
    inputs = keras.Input((4,), dtype="int32")
    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    plain = keras.Model(inputs, keras.layers.LSTM(2, name="rnn")(embedded))
    marked = keras.Model(inputs, plain.get_layer("rnn")(RecomputationCheckpoint()(embedded)))
    ids = np.array([[1, 2, 0, 0]])
    np.testing.assert_allclose(marked(ids), plain(ids), atol=1e-7)
    short = plain.get_layer("rnn")(plain.layers[1](tf.constant([[1, 2]])))
    np.testing.assert_allclose(marked(ids), short, atol=1e-6)


def test_a_checkpoint_in_a_plain_model_does_nothing(tmp_path):
    inputs = keras.Input((3,))
    hidden = RecomputationCheckpoint()(keras.layers.Dense(4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    x = np.ones((1, 3), "float32")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))


X = np.arange(2 * 5 * 3, dtype="float32").reshape(2, 5, 3)


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (0, 1), (4, 5), (1, 3)])
def test_a_slice_takes_its_timesteps(start, stop):
    np.testing.assert_array_equal(TimeSlice(start, stop)(X), X[:, start:stop])
    symbolic = TimeSlice(start, stop)(keras.Input((5, 3)))
    assert symbolic.shape == (None, stop - start, 3)


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 2), (2, 2), (3, 1), (0, 0), (0.0, 2), ("0", 2), (None, 2), (0, None)]
)
def test_bad_limits_are_refused(start, stop):
    with pytest.raises(InvalidArgumentError, match=r"0 <= start < stop, not start=") as refused:
        TimeSlice(start, stop)
    assert repr(start) in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_a_slice_has_the_type_of_its_sequence():
    assert TimeSlice(1, 3)(keras.Input((5,), dtype="int32")).dtype == "int32"
    assert TimeSlice(1, 3, dtype="mixed_bfloat16")(keras.Input((5,))).dtype == "bfloat16"


def test_a_sequence_too_short_is_refused():
    with pytest.raises(
        InvalidArgumentError, match=r"'late' takes the steps 3 to 6, but the sequence has only 5"
    ):
        TimeSlice(3, 6, name="late")(X)
    with pytest.raises(InvalidArgumentError, match="has only 5"):
        TimeSlice(3, 6)(keras.Input((5, 3)))


def test_a_slice_of_a_sequence_of_unknown_length():
    model_input = keras.Input((None, 3))
    model = keras.Model(model_input, TimeSlice(1, 3)(model_input))
    np.testing.assert_array_equal(model(X), X[:, 1:3])


def test_a_slice_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((5, 3))
    model = keras.Model(inputs, TimeSlice(1, 4, name="part")(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    layer = loaded.get_layer("part")
    assert (layer.start, layer.stop) == (1, 4)
    np.testing.assert_array_equal(loaded(X), X[:, 1:4])
