"""The other layers of ipu_tensorflow_addons against definitions in NumPy; refusals."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu.names import addon_layers as layers


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-3) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def by_channel_groups(x: np.ndarray, group_of: list[int]) -> np.ndarray:
    """Normalise the last axis's channels, those of one group together, for each sample."""
    out = np.empty_like(x)
    for group in set(group_of):
        channels = [c for c, g in enumerate(group_of) if g == group]
        out[..., channels] = normalised(x[..., channels], tuple(range(1, x.ndim)))
    return out


class TestNormalization:
    @pytest.mark.parametrize(
        ("strided", "group_of"), [(True, [0, 1, 2, 0, 1, 2]), (False, [0, 0, 1, 1, 2, 2])]
    )
    @pytest.mark.parametrize("axis", [-1, 3, 1])
    def test_groups(self, strided, group_of, axis):
        layer = layers.GroupNormalization(3, channels_axis=axis, strided_channel_grouping=strided)
        x = numbers(2, 4, 5, 6) * 3 + 1
        given = np.moveaxis(x, -1, 1) if axis == 1 else x
        layer.build(given.shape)
        gamma, beta = numbers(6, seed=1), numbers(6, seed=2)
        layer.set_weights([gamma, beta])
        returned = np.moveaxis(layer(given), 1, -1) if axis == 1 else layer(given)
        np.testing.assert_allclose(
            returned, by_channel_groups(x, group_of) * gamma + beta, atol=1e-5
        )
        np.testing.assert_array_equal(layer(given, training=True), layer(given))

    def test_instances(self):
        layer = layers.InstanceNormalization(
            beta_initializer="zeros", gamma_initializer="ones", epsilon=1e-5
        )
        x = numbers(2, 4, 5, 6) * 3 + 1
        np.testing.assert_allclose(layer(x), normalised(x, (1, 2), 1e-5), atol=1e-5)

    @pytest.mark.parametrize("axis", [-1, [-1], (1, 3), [2, -1, 1]])
    def test_layers(self, axis):
        layer = layers.LayerNormalization(axis)
        x = numbers(2, 4, 5, 6) * 3 + 1
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        np.testing.assert_allclose(layer(x), normalised(x, axes), atol=1e-5)

    @pytest.mark.parametrize("axis", [[1, 2], (1, -1)])
    def test_layer_weights_along_the_axes_are_those_of_keras_s_layer(self, axis):
        layer, plain = layers.LayerNormalization(axis), keras.layers.LayerNormalization(axis)
        x = numbers(2, 4, 5)
        layer.build(x.shape)
        plain.build(x.shape)
        plain.set_weights([numbers(*w.shape, seed=n) for n, w in enumerate(plain.get_weights())])
        layer.set_weights(plain.get_weights())
        np.testing.assert_allclose(layer(x), plain(x), atol=1e-5)

    @pytest.mark.parametrize(
        ("scale", "center", "names"),
        [(False, True, ["beta"]), (True, False, ["gamma"]), (False, False, [])],
    )
    def test_without_gamma_or_beta(self, scale, center, names):
        layer = layers.LayerNormalization(scale=scale, center=center)
        x = numbers(2, 3)
        np.testing.assert_allclose(layer(x), normalised(x, (1,)), atol=1e-5)
        assert [w.name for w in layer.weights] == names

    def test_half_precision(self):
        x = (numbers(2, 8) * 1000).astype("float16")
        y = layers.LayerNormalization(dtype="float16")(x)
        assert y.dtype == tf.float16
        np.testing.assert_allclose(y, normalised(x.astype("float32"), (1,)), atol=5e-3)

    @pytest.mark.parametrize(
        ("layer", "shape", "said"),
        [
            (
                lambda: layers.GroupNormalization(4),
                (2, 6),
                "groups=4 does not divide the 6 channels",
            ),
            (
                lambda: layers.GroupNormalization(8),
                (2, 6),
                "groups=8 does not divide the 6 channels",
            ),
            (
                lambda: layers.GroupNormalization(2, channels_axis=4),
                (2, 6),
                "channels_axis=4 is not an axis",
            ),
            (
                lambda: layers.GroupNormalization(2, channels_axis=2),
                (2, 6, 6, 6),
                "of 4 axes: give 1 or the last",
            ),
            (
                lambda: layers.InstanceNormalization(channels_axis=7),
                (2, 6),
                "channels_axis=7 is not an axis",
            ),
            (
                lambda: layers.LayerNormalization(5),
                (2, 6),
                r"axis=\[5\] is not an axis of its inputs, \(2, 6\)",
            ),
            (lambda: layers.LayerNormalization([1, -1]), (2, 6), "is named twice"),
            (lambda: layers.LayerNormalization(1), (2, None), "needs a known size"),
        ],
    )
    def test_what_cannot_be_built(self, layer, shape, said):
        with pytest.raises(ValueError, match=said):
            layer().build(shape)

    @pytest.mark.parametrize("axis", ["1", 1.0, True, None, ["1"]])
    def test_an_axis_is_an_int_or_several(self, axis):
        with pytest.raises(ValueError, match="give an int or a list of them"):
            layers.LayerNormalization(axis)

    @pytest.mark.parametrize(
        "name", ["beta_regularizer", "gamma_regularizer", "beta_constraint", "gamma_constraint"]
    )
    def test_what_it_has_not(self, name):
        with pytest.raises(
            NotImplementedError, match=f"LayerNormalization has no {name}, but was given 'l2'"
        ):
            layers.LayerNormalization(**{name: "l2"})


class TestEmbedding:
    @pytest.mark.parametrize("factor", [1, 3])
    def test_rows_of_the_table(self, factor):
        layer = layers.Embedding(12, 4, serialization_factor=factor)
        ids = np.array([[0, 11, 5], [7, 4, 8]])
        np.testing.assert_array_equal(layer(ids), layer.embeddings.numpy()[ids])
        np.testing.assert_array_equal(
            layer(ids, inputs_are_sorted=True, training=True), layer.embeddings.numpy()[ids]
        )
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(layer(ids) * numbers(2, 3, 4))
        gradient = tf.convert_to_tensor(tape.gradient(y, layer.embeddings.value))
        expected = np.zeros((12, 4), "float32")
        expected[ids] = numbers(2, 3, 4)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)

    def test_inputs_of_another_rank(self):
        with pytest.raises(ValueError, match=r"takes inputs \(batch, length\), not \(2,\)"):
            layers.Embedding(12, 4)(np.array([1, 2]))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("embeddings_regularizer", "l2"),
            ("activity_regularizer", "l2"),
            ("embeddings_constraint", "non_neg"),
            ("mask_zero", True),
            ("input_length", 3),
        ],
    )
    def test_what_it_has_not(self, name, value):
        with pytest.raises(
            NotImplementedError, match=f"Embedding has no {name}, but was given {value!r}"
        ):
            layers.Embedding(12, 4, **{name: value})

    @pytest.mark.parametrize("factor", [0, 5, 1.0])
    def test_factors(self, factor):
        with pytest.raises(ValueError, match=f"serialization_factor={factor}"):
            layers.Embedding(12, 4, serialization_factor=factor)


class TestSerialDense:
    @pytest.mark.parametrize(
        "dimension", ["input_columns", "input_rows_kernel_columns", "kernel_rows"]
    )
    def test_the_product_in_pieces(self, dimension):
        layer = layers.SerialDense(8, 2, dimension, activation="tanh", bias_initializer="ones")
        plain = keras.layers.Dense(8, activation="tanh")
        x = numbers(3, 4, 6)
        layer(x)
        plain(x)
        plain.set_weights(layer.get_weights())
        np.testing.assert_allclose(layer(x), plain(x), atol=1e-6)
        products = [
            op
            for op in tf.function(layer).get_concrete_function(x).graph.get_operations()
            if "MatMul" in op.type
        ]
        assert len(products) == 2

    def test_dense_is_of_keras(self):
        assert layers.Dense is keras.layers.Dense

    @pytest.mark.parametrize(
        ("factor", "dimension", "said"),
        [
            (2, "rows", "serialization_dimension='rows' is unknown: give one of input_columns"),
            (0, "kernel_rows", "serialization_factor=0: give"),
            (3, "kernel_rows", "serialization_factor=3 does not divide kernel_rows, which is 8"),
            (
                4,
                "input_rows_kernel_columns",
                "does not divide input_rows_kernel_columns, which is 6",
            ),
            (3, "input_columns", "does not divide input_columns, which is 4"),
        ],
    )
    def test_what_cannot_be_cut(self, factor, dimension, said):
        with pytest.raises(ValueError, match=said):
            layers.SerialDense(8, factor, dimension)(numbers(3, 4, 6))


class TestDropout:
    def test_rate_and_scale(self):
        layer = layers.Dropout(0.25)
        y = layer(tf.ones((100, 100)), training=True).numpy()
        assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
        assert 0.22 < (y == 0).mean() < 0.28
        np.testing.assert_array_equal(layer(tf.ones((2, 2))), 1)

    @pytest.mark.parametrize("seed", [None, (3, 4)])
    def test_one_draw_for_a_dimension(self, seed):
        y = layers.Dropout(0.5, noise_shape=[20, 1, 30], seed=seed)(
            tf.ones((20, 7, 30)), training=True
        ).numpy()
        assert (y == y[:, :1]).all()
        assert 0.4 < (y == 0).mean() < 0.6

    def test_a_seed_gives_the_same_mask(self):
        x = tf.ones((4, 50))
        one, same, other = (layers.Dropout(0.5, seed=seed) for seed in ((1, 2), [1, 2], (2, 1)))
        np.testing.assert_array_equal(one(x, training=True), one(x, training=True))
        np.testing.assert_array_equal(one(x, training=True), same(x, training=True))
        assert (one(x, training=True) != other(x, training=True)).numpy().any()
        free = layers.Dropout(0.5)
        assert (free(x, training=True) != free(x, training=True)).numpy().any()

    @pytest.mark.parametrize("rate", [1, -0.1])
    def test_a_rate(self, rate):
        with pytest.raises(ValueError, match=f"rate={rate}"):
            layers.Dropout(rate)

    def test_a_seed(self):
        with pytest.raises(ValueError, match="seed=7 is not two whole numbers"):
            layers.Dropout(0.5, seed=7)

    @pytest.mark.parametrize("noise_shape", [(4,), (4, 2)])
    def test_a_noise_shape(self, noise_shape):
        with pytest.raises(ValueError, match="does not fit inputs of shape"):
            layers.Dropout(0.5, noise_shape)(tf.ones((4, 3)), training=True)


def test_saved_and_loaded(tmp_path):
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Embedding(12, 8, serialization_factor=2)(inputs)
    x = layers.GroupNormalization(4, strided_channel_grouping=False)(x)
    x = layers.InstanceNormalization(epsilon=0.1)(x)
    x = layers.Dropout(0.5, seed=(1, 2))(x)
    x = layers.LayerNormalization([1, 2], scale=False)(x)
    x = layers.SerialDense(4, 2, "kernel_rows")(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert [layer.get_config() for layer in loaded.layers] == [
        layer.get_config() for layer in model.layers
    ]
    ids = np.array([[0, 11, 5]])
    for training in (False, True):
        np.testing.assert_array_equal(loaded(ids, training=training), model(ids, training=training))


def test_values_that_are_equal_across_replicas():
    layer = layers.AssumeEqualAcrossReplicas(inplace=True, name="equal")
    again = layers.AssumeEqualAcrossReplicas.from_config(layer.get_config())
    assert (again.inplace, again.name) == (True, "equal")
    inputs = keras.Input((2,))
    model = keras.Model(inputs, again(inputs))
    np.testing.assert_array_equal(model(numbers(3, 2)), numbers(3, 2))
