"""PopnnLSTM and PopnnGRU (contract section 9)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu import install, uninstall


@pytest.fixture
def installed():
    install()
    yield
    uninstall()


@pytest.mark.usefixtures("installed")
class TestPopnn:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("use_bias", False),
            ("kernel_regularizer", "l2"),
            ("bias_constraint", "non_neg"),
            ("recurrent_dropout", 0.1),
            ("go_backwards", True),
            ("unroll", True),
            ("time_major", True),
        ],
    )
    @pytest.mark.parametrize("layer", ["PopnnLSTM", "PopnnGRU"])
    def test_what_popnn_does_not_do(self, layer, name, value):
        import ipu_tensorflow_addons.keras.layers as layers

        with pytest.raises(ValueError, match=f"{layer}.*{name}={value!r}"):
            getattr(layers, layer)(4, **{name: value})

    @pytest.mark.parametrize(("name", "plain"), [("PopnnLSTM", keras.layers.LSTM), ("PopnnGRU", keras.layers.GRU)])
    def test_weights_and_results_are_keras_s(self, name, plain, tmp_path):
        import ipu_tensorflow_addons.keras.layers as layers

        inputs = keras.Input((5, 3))
        ours = getattr(layers, name)(4, return_sequences=True, partials_dtype=tf.float16, options={"a": "b"}, dropout_seed=3)
        model = keras.Model(inputs, ours(inputs))
        reference = plain(4, return_sequences=True)
        x = np.linspace(-1, 1, 30, dtype="float32").reshape(2, 5, 3)
        reference(x)
        reference.set_weights([w + 0.1 for w in ours.get_weights()])
        ours.set_weights(reference.get_weights())
        np.testing.assert_allclose(model(x), reference(x), atol=1e-6)
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
        assert loaded.layers[-1].get_config() == ours.get_config()
        np.testing.assert_array_equal(loaded(x), model(x))
