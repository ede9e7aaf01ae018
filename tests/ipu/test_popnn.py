"""PopnnLSTM and PopnnGRU: Keras's weights and results, popnn's arguments and refusals.

Source: Graphcore, addons.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu.layers.popnn import PopnnGRU, PopnnLSTM
from tests.oracle import assert_all_close

BATCH, TIME, FEATURES, UNITS = 3, 5, 4, 6
LAYERS = {
    "lstm": (PopnnLSTM, keras.layers.LSTM, {}),
    "gru": (PopnnGRU, keras.layers.GRU, {}),
    "gru reset before": (PopnnGRU, keras.layers.GRU, {"reset_after": False}),
}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def keras_hard_sigmoid_of_version_2(x):
    return tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0)


def pair(cell: str, **arguments):
    """Return ours and Keras's layer with the same weights, none of them zero."""
    ours_class, plain_class, extra = LAYERS[cell]
    ours = ours_class(UNITS, return_sequences=True, return_state=True, **extra, **arguments)
    arguments.pop("time_major", None)
    for name, value in arguments.items():
        if value == "hard_sigmoid":
            arguments[name] = keras_hard_sigmoid_of_version_2
    plain = plain_class(UNITS, return_sequences=True, return_state=True, **extra, **arguments)
    x = numbers(BATCH, TIME, FEATURES)
    plain(x)
    plain.set_weights([numbers(*w.shape, seed=i) / 2 for i, w in enumerate(plain.get_weights())])
    ours(x.swapaxes(0, 1) if ours.time_major else x)
    ours.set_weights(plain.get_weights())
    return ours, plain


def both(ours, plain, **call):
    """Return outputs and gradients of our layer and of Keras's, for the same inputs."""
    found = []
    for layer in (ours, plain):
        x = tf.constant(numbers(BATCH, TIME, FEATURES, seed=9))
        with tf.GradientTape() as tape:
            tape.watch(x)
            given = tf.transpose(x, [1, 0, 2]) if getattr(layer, "time_major", False) else x
            outputs, *states = layer(given, **call)
            if getattr(layer, "time_major", False):
                assert outputs.shape == (TIME, BATCH, UNITS)
                outputs = tf.transpose(outputs, [1, 0, 2])
            weighed = [tf.reduce_sum(y * numbers(*y.shape, seed=11)) for y in (outputs, *states)]
        values = [w.value for w in layer.trainable_weights]
        found.append([outputs, *states, *tape.gradient(weighed, [x, *values])])
    return found


def assert_same(ours, plain):
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert np.abs(b).max() > 1e-3
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("time_major", [False, True])
def test_results_and_gradients_are_keras_s(cell, time_major):
    assert_same(*both(*pair(cell, time_major=time_major)))


@pytest.mark.parametrize(
    ("cell", "activation", "recurrent"),
    [
        ("lstm", "relu", "sigmoid"),
        ("lstm", "softmax", "hard_sigmoid"),
        ("lstm", "hard_sigmoid", "softmax"),
        ("gru", "sigmoid", "tanh"),
        ("gru reset before", "relu", "hard_sigmoid"),
    ],
)
def test_activations(cell, activation, recurrent):
    """The hard sigmoid is popnn's, which is Keras 2's and not Keras 3's."""
    assert_same(*both(*pair(cell, activation=activation, recurrent_activation=recurrent)))


def test_compiled_with_another_activation():
    ours, _ = pair("lstm", activation="relu")
    x = numbers(BATCH, TIME, FEATURES)
    np.testing.assert_allclose(tf.function(ours, jit_compile=True)(x)[0], ours(x)[0], atol=1e-6)


@pytest.mark.parametrize("cell", LAYERS)
def test_weights_by_their_names(cell):
    ours, plain = pair(cell)
    gates = 4 if cell == "lstm" else 3
    assert ours.kernel.shape == (FEATURES, gates * UNITS)
    assert ours.recurrent_kernel.shape == (UNITS, gates * UNITS)
    assert ours.biases.shape == ((2, gates * UNITS) if cell == "gru" else (gates * UNITS,))
    for ours_weight, plain_weight in zip(
        (ours.kernel, ours.recurrent_kernel, ours.biases), plain.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours_weight, plain_weight)


@pytest.mark.parametrize("unit_forget_bias", [True, False])
def test_the_forget_gate_s_bias(unit_forget_bias):
    layer = PopnnLSTM(
        UNITS, unit_forget_bias=unit_forget_bias, bias_initializer=keras.initializers.Constant(0.25)
    )
    layer.build((BATCH, TIME, FEATURES))
    expected = np.full(4 * UNITS, 0.25)
    expected[UNITS : 2 * UNITS] = 1 if unit_forget_bias else 0.25
    np.testing.assert_array_equal(layer.biases, expected)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_what_is_returned(cell):
    layer, states = LAYERS[cell][0], 2 if cell == "lstm" else 1
    x = numbers(BATCH, TIME, FEATURES)
    assert layer(UNITS)(x).shape == (BATCH, UNITS)
    assert layer(UNITS, return_sequences=True)(x).shape == (BATCH, TIME, UNITS)
    assert layer(UNITS, return_sequences=True, time_major=True)(x).shape == (BATCH, TIME, UNITS)
    assert [y.shape for y in layer(UNITS, return_state=True)(x)] == [(BATCH, UNITS)] * (1 + states)
    symbolic = keras.Input(batch_shape=(TIME, BATCH, FEATURES))
    returned = layer(UNITS, return_sequences=True, return_state=True, time_major=True)(symbolic)
    assert [y.shape for y in returned] == [(TIME, BATCH, UNITS)] + [(BATCH, UNITS)] * states


@pytest.mark.parametrize("time_major", [False, True])
def test_two_halves_are_the_whole(time_major):
    """The state returned by the first half, given to the second: (h, c)."""
    ours, _ = pair("lstm", time_major=time_major)
    x = numbers(*((TIME, BATCH, FEATURES) if time_major else (BATCH, TIME, FEATURES)))
    whole, *last = ours(x)
    first, second = (x[:2], x[2:]) if time_major else (x[:, :2], x[:, 2:])
    one, h, c = ours(first)
    two, *end = ours(second, initial_state=(h, c))
    np.testing.assert_allclose(tf.concat([one, two], 0 if time_major else 1), whole, atol=1e-6)
    assert_all_close(end, last, atol=1e-6)


@pytest.mark.parametrize("time_major", [False, True])
def test_stateful(time_major):
    ours, _ = pair("gru", time_major=time_major, stateful=True)
    ours.reset_state()
    x = numbers(*((TIME, BATCH, FEATURES) if time_major else (BATCH, TIME, FEATURES)))
    first, state = ours(x)
    np.testing.assert_allclose(ours.states[0], state, atol=1e-6)
    second, _ = ours(x)
    assert np.abs(second - first).max() > 1e-3
    ours.reset_state()
    np.testing.assert_allclose(ours(x)[0], first, atol=1e-6)


class TestDropout:
    def kept(self, layer, x) -> np.ndarray:
        """Return which inputs had an influence, from the gradient."""
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.nest.flatten(layer(x, training=True))[0] ** 2)
        return np.abs(tape.gradient(y, x)) > 0

    def test_one_mask_for_the_sequence(self):
        layer = PopnnLSTM(UNITS, dropout=0.5, return_sequences=True)
        kept = self.kept(layer, numbers(8, TIME, 16))
        assert 0.3 < kept.mean() < 0.7
        assert (kept == kept[:, :1]).all()

    def test_the_kept_are_scaled(self):
        layer = PopnnGRU(UNITS, dropout=0.5, dropout_seed=(1, 2), return_sequences=True)
        x = numbers(8, TIME, 16)
        kept = self.kept(layer, x)
        np.testing.assert_allclose(layer(x, training=True), layer(x * kept * 2), atol=1e-5)

    def test_a_seed_gives_the_same_mask_at_every_execution(self):
        x = numbers(8, TIME, 16)
        with_seed = [
            PopnnLSTM(UNITS, dropout=0.5, dropout_seed=seed) for seed in ([1, 2], (1, 2), (1, 3))
        ]
        masks = [self.kept(layer, x) for layer in (*with_seed, with_seed[0])]
        assert (masks[0] == masks[1]).all()
        assert (masks[0] == masks[3]).all()
        assert (masks[0] != masks[2]).any()
        without = PopnnLSTM(UNITS, dropout=0.5)
        assert (self.kept(without, x) != self.kept(without, x)).any()

    @pytest.mark.parametrize("seed", [3, [1], [1, 2, 3], "ab"])
    def test_a_seed_is_two_numbers(self, seed):
        with pytest.raises(ValueError, match="is not two whole numbers"):
            PopnnLSTM(UNITS, dropout=0.5, dropout_seed=seed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_bias", False),
        ("kernel_regularizer", "l2"),
        ("recurrent_regularizer", "l1"),
        ("bias_regularizer", "l2"),
        ("activity_regularizer", "l2"),
        ("kernel_constraint", "non_neg"),
        ("recurrent_constraint", "non_neg"),
        ("bias_constraint", "non_neg"),
        ("recurrent_dropout", 0.1),
        ("go_backwards", True),
        ("unroll", True),
        ("activation", "selu"),
        ("activation", None),
        ("activation", keras.activations.gelu),
        ("recurrent_activation", "relu"),
        ("dtype", "float64"),
        ("dtype", "bfloat16"),
        ("implementation", 0),
    ],
)
@pytest.mark.parametrize("layer", [PopnnLSTM, PopnnGRU])
def test_what_popnn_does_not_do(layer, name, value):
    said = {"dtype": f"no dtype {value}", "implementation": "one implementation"}.get(
        name, f"{name}="
    )
    with pytest.raises(ValueError, match=f"{layer.__name__} .*{said}"):
        layer(UNITS, **{name: value})


def test_arguments_by_position_are_checked_too():
    assert PopnnLSTM(UNITS, "relu", keras.activations.tanh).activation is keras.activations.relu
    with pytest.raises(ValueError, match="use_bias=False"):
        PopnnLSTM(UNITS, "tanh", "sigmoid", False)


@pytest.mark.parametrize("shape", [(BATCH, FEATURES), (BATCH, TIME, FEATURES, 1)])
def test_inputs_of_another_rank(shape):
    with pytest.raises(ValueError, match=r"ndim=3|3 dimensions"):
        PopnnLSTM(UNITS)(numbers(*shape))


@pytest.mark.parametrize("layer", [PopnnLSTM, PopnnGRU])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_mask(layer, activation):
    with pytest.raises(NotImplementedError, match="was given a mask"):
        layer(UNITS, activation)(numbers(BATCH, TIME, FEATURES), mask=np.ones((BATCH, TIME), bool))


def test_half_precision():
    layer = PopnnLSTM(UNITS, dtype="float16", return_sequences=True)
    assert layer(numbers(BATCH, TIME, FEATURES).astype("float16")).dtype == tf.float16
    assert layer.kernel.dtype == "float16"


def test_seeded_weights():
    def weights(seed):
        layer = PopnnLSTM(UNITS, seed=seed)
        layer.build((BATCH, TIME, FEATURES))
        return layer.get_weights()

    for a, b in zip(weights(3), weights(3), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(weights(3)[0] - weights(4)[0]).max() > 0.01


@pytest.mark.parametrize("layer", [PopnnLSTM, PopnnGRU])
def test_tensorflow_s_initializers_are_read_back_from_the_config(layer):
    ours = layer(
        UNITS,
        kernel_initializer=tf.constant_initializer(0.1),
        bias_initializer=tf.constant_initializer(0.3),
    )
    again = layer.from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    again.build((BATCH, TIME, FEATURES))
    assert {float(w) for w in np.ravel(again.get_weights()[0])} == {np.float32(0.1)}


@pytest.mark.parametrize("layer", [PopnnLSTM, PopnnGRU])
def test_saved_and_loaded(layer, tmp_path):
    inputs = keras.Input(batch_shape=(TIME, BATCH, FEATURES))
    ours = layer(
        UNITS,
        activation="hard_sigmoid",
        partials_dtype=tf.float16,
        seed=5,
        dropout=0.25,
        dropout_seed=[1, 2],
        time_major=True,
        return_sequences=True,
        options={"availableMemoryProportion": "0.2"},
        options_bwd={"a": "b"},
        available_memory_proportion_fwd=0.5,
    )
    model = keras.Model(inputs, ours(inputs))
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = loaded.layers[-1]
    assert type(again) is layer
    config = again.get_config()
    assert config == ours.get_config()
    assert (config["partials_dtype"], tuple(config["dropout_seed"]), config["time_major"]) == (
        "float16",
        (1, 2),
        True,
    )
    x = numbers(TIME, BATCH, FEATURES)
    np.testing.assert_array_equal(loaded(x), model(x))
    np.testing.assert_array_equal(loaded(x, training=True), model(x, training=True))


@pytest.mark.parametrize("cls", [PopnnLSTM, PopnnGRU])
def test_inputs_by_name(cls):
    """As Graphcore calls them; eagerly and in a model."""
    layer, x = cls(UNITS), numbers(BATCH, TIME, FEATURES)
    expected = layer(x)
    np.testing.assert_array_equal(layer(inputs=x), expected)
    inputs = keras.Input((TIME, FEATURES))
    np.testing.assert_allclose(keras.Model(inputs, layer(inputs=inputs))(x), expected, atol=1e-6)
