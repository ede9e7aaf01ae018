"""Keras 2's ways, while Graphcore's names are installed and no longer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu import install, uninstall
from keras_recompute.ipu.configuration.keras2_compat import WAYS
from keras_recompute.ipu.keras2.adaptations import ADAPTATIONS

from .pipelines import numbers

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture
def uninstalled():
    uninstall()
    yield
    install()


class HandsItselfOn(keras.Model):
    def __init__(self):
        super().__init__(self)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def test_the_list_is_that_of_the_code():
    assert list(WAYS) == list(ADAPTATIONS)


@pytest.mark.parametrize(
    "make", [keras.Input, keras.layers.Input, tf.keras.Input, tf.keras.layers.Input]
)
def test_whole_numbers_for_shapes(make):
    assert make(80).shape == (None, 80)
    assert make(shape=np.int64(80), batch_size=2).shape == (2, 80)
    assert make((3, 4)).shape == (None, 3, 4)
    assert make(batch_shape=(2, 3)).shape == (2, 3)


def test_a_model_that_hands_itself_on():
    assert HandsItselfOn()(np.ones((2, 3), "float32")).shape == (2, 1)


@pytest.mark.parametrize("cls", [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN])
@pytest.mark.parametrize(
    ("sequences", "state"), [(True, False), (False, False), (True, True), (False, True)]
)
def test_time_first(cls, sequences, state):
    """Eagerly, in a model, and in one that was saved, against the layer with the batch first."""
    x, options = numbers(4, 5, 3), {"return_sequences": sequences, "return_state": state}
    plain, first = cls(2, **options), cls(2, time_major=True, **options)
    expected = plain(x)
    turned = x.swapaxes(0, 1)
    first(turned)
    first.set_weights(plain.get_weights())
    inputs = keras.Input((4, 3), batch_size=5)
    model = keras.Model(inputs, first(inputs))
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    for found in (first(turned), model(turned), again(turned)):
        for a, b in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
            np.testing.assert_allclose(
                a, np.swapaxes(b, 0, 1) if len(b.shape) == 3 else b, atol=1e-6
            )


@pytest.mark.parametrize("cls", [keras.layers.LSTM, keras.layers.GRU])
def test_sequences_by_the_name_of_inputs(cls):
    layer, x, state = cls(2), numbers(5, 4, 3), numbers(5, 2, seed=1)
    states = [state, state] if cls is keras.layers.LSTM else state
    np.testing.assert_array_equal(
        layer(inputs=x, initial_state=states), layer(x, initial_state=states)
    )
    symbolic = keras.Input((4, 3))
    np.testing.assert_allclose(
        keras.Model(symbolic, layer(inputs=symbolic))(x), layer(x), atol=1e-6
    )


def test_time_first_by_a_cell():
    layer, x = (
        keras.layers.RNN(keras.layers.SimpleRNNCell(2), return_sequences=True, time_major=True),
        numbers(5, 4, 3),
    )
    plain = keras.layers.RNN(layer.cell, return_sequences=True)
    np.testing.assert_allclose(layer(x), np.swapaxes(plain(x.swapaxes(0, 1)), 0, 1), atol=1e-6)


def test_lr_and_decay():
    optimizer = keras.optimizers.SGD(lr=0.5, decay=1.0)
    variable = keras.Variable([0.0])
    for _ in range(3):
        optimizer.apply([tf.constant([1.0])], [variable])
    np.testing.assert_allclose(variable, [-(0.5 + 0.5 / 2 + 0.5 / 3)], rtol=1e-6)
    optimizer = keras.optimizers.Adam(lr=0.5)
    optimizer.lr = 0.25
    assert float(optimizer.lr) == float(optimizer.learning_rate) == 0.25
    with pytest.raises(
        ValueError,
        match=r"decay=0\.1 cannot be combined with the learning rate <.*: leave decay out",
    ):
        keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1), decay=0.1)


@pytest.mark.parametrize(
    "rate", [1, np.float32(0.5), np.float64(0.5), np.array(0.5), tf.constant(0.5)], ids=repr
)
def test_learning_rates_of_any_type(rate):
    assert float(keras.optimizers.SGD(rate).learning_rate) == float(rate)
    assert float(keras.optimizers.Adam(learning_rate=rate).learning_rate) == float(rate)


@pytest.mark.parametrize("where", [keras.backend, keras.config, tf.keras.backend])
def test_the_type_of_layers(where):
    keras.layers.Dense(1)  # the first fixes the type in Keras 3
    try:
        where.set_floatx("float16")
        assert keras.layers.Dense(1).compute_dtype == "float16"
        keras.config.set_dtype_policy("mixed_float16")
        where.set_floatx("float32")
        assert keras.config.dtype_policy().name == "mixed_float16", (
            "a policy that was asked for stays"
        )
    finally:
        keras.config.set_dtype_policy("float32")
        keras.config.set_floatx("float32")
    assert keras.layers.Dense(1).compute_dtype == "float32"


@pytest.mark.parametrize("name", ["weights.hd5", "weights.h5", "weights", "a.weights.h5"])
@pytest.mark.parametrize("as_path", [True, False])
def test_weight_files_under_any_name(tmp_path, monkeypatch, name, as_path):
    """Beside nothing else in the folder; a second time over the first."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name if as_path else name
    models = [keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]) for _ in range(3)]
    models[2].save_weights(path)
    models[0].save_weights(path)
    models[1].load_weights(path)
    np.testing.assert_array_equal(models[1].get_weights()[0], models[0].get_weights()[0])
    assert [file.name for file in tmp_path.iterdir()] == [name]
    if name != "a.weights.h5":
        with pytest.raises(
            FileExistsError, match=r"overwrite=False\): the file exists already. Remove it"
        ):
            models[2].save_weights(path, overwrite=False)


def test_a_weight_file_that_is_not_there_or_is_none(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    (tmp_path / "text.hd5").write_text("no weights")
    for name in ("nowhere.hd5", "text.hd5"):
        with pytest.raises((ValueError, OSError), match=name):
            model.load_weights(tmp_path / name)


@pytest.mark.filterwarnings("ignore:.*HDF5 file")
def test_a_weight_file_of_keras_2(tmp_path):
    """The layout that Keras 2 wrote is that of Keras's legacy HDF5 models."""
    first, second = (keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]) for _ in range(2))
    first.save(tmp_path / "model.h5")
    second.load_weights(tmp_path / "model.h5")
    np.testing.assert_array_equal(second.get_weights()[0], first.get_weights()[0])


@pytest.mark.usefixtures("uninstalled")
def test_without_the_names_keras_is_as_it_was():
    with pytest.raises(ValueError, match="Cannot convert '80' to a shape"):
        keras.Input(80)
    with pytest.raises(TypeError):
        HandsItselfOn()
    with pytest.raises(ValueError, match="Unrecognized keyword arguments passed to LSTM"):
        keras.layers.LSTM(2, time_major=True)
    with pytest.raises(ValueError, match="lr"):
        keras.optimizers.SGD(lr=0.1)
    with pytest.raises(ValueError, match="learning_rate"):
        keras.optimizers.SGD(np.array(0.1))
    with pytest.raises(ValueError, match="must end in"):
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save_weights("weights.hd5")
    assert not hasattr(keras.optimizers.SGD(), "lr")
    for module in (keras.config, keras.backend, tf.keras.config, tf.keras.backend):
        assert module.set_floatx.__module__.startswith("keras.src")


@pytest.mark.usefixtures("graphcore_names")
@pytest.mark.parametrize("is_column", [False, True])
def test_predictions_with_an_axis_behind_that_of_the_classes(is_column):
    probabilities = np.random.default_rng(0).uniform(0.1, 1.0, (3, 4)).astype("float32")
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    classes = np.array([0, 2, 3])
    expected = -np.log(probabilities[np.arange(3), classes]).mean()
    targets = classes[:, None] if is_column else classes
    loss = keras.losses.SparseCategoricalCrossentropy()
    assert float(loss(targets, probabilities[..., None])) == pytest.approx(expected, rel=1e-5)
    assert float(loss(targets, probabilities)) == pytest.approx(expected, rel=1e-5)
