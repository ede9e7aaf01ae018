"""What Keras's scopes of names, values of variables and losses must do on other backends too."""

import keras

from keras_recompute.seams.keras.layers import layers_in, losses_cleared, values_replaced
from keras_recompute.seams.keras.name_scopes import current_scopes, open_scopes


class Scoped(keras.layers.Layer):
    def call(self, x):
        self.seen = current_scopes()
        self.add_loss(0.0 * keras.ops.sum(x))
        return x


def test_current_scopes_end_in_the_layer():
    layer = Scoped(name="inner")
    layer(keras.ops.ones((1, 2)))
    if keras.backend.backend() != "tensorflow":  # which has scopes of its own
        assert layer.seen == "inner"
    assert current_scopes() == ""


def test_values_replaced():
    variable = keras.Variable([1.0, 2.0])
    before = variable.value
    with values_replaced([variable], [keras.ops.zeros(2)]):
        assert not keras.ops.convert_to_numpy(variable.value).any()
    assert keras.ops.convert_to_numpy(variable.value).sum() == 3
    assert variable.shape == before.shape


def test_losses_cleared():
    layer = Scoped()
    with losses_cleared(layers_in(layer)):
        layer(keras.ops.ones((1, 2)))
        assert len(layer.losses) == 1
    assert layer.losses == []


def test_open_scopes():
    assert open_scopes() == []
    with keras.name_scope("outer"), keras.name_scope("inner"):
        assert open_scopes() == ["outer", "inner"]
