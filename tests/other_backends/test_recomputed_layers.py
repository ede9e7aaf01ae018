"""Layers that are recomputed call by call, inside models with a computation of their own."""

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr

L = keras.layers
X, Y = np.random.default_rng(0).standard_normal((2, 16, 8)).astype("float32")


class Block(L.Layer):
    """Residual, with dropout, statistics, an added loss, and a result that is no tensor."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.wide, self.narrow = L.Dense(16, "gelu"), L.Dense(8)
        self.norm, self.dropout = L.BatchNormalization(), L.Dropout(0.2)

    def build(self, shape):
        for layer in (self.wide, self.norm):
            layer.build(shape)
        self.narrow.build((*shape[:-1], 16))

    def call(self, x, scale=1.0, training=None):
        y = self.narrow(self.dropout(self.wide(self.norm(x, training=training)), training=training))
        self.add_loss(0.01 * keras.ops.mean(y**2))
        return {"sum": x + scale * y, "scale": scale}


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = [Block(name=f"block_{n}") for n in range(3)], L.Dense(8)

    def call(self, x, training=None):
        for number, block in enumerate(self.blocks):
            x = block(x, scale=0.5 * number, training=training)["sum"]
        return self.head(x)


def network():
    model = Net()
    model(X)
    return model


@pytest.mark.parametrize("layers", [Block, "block_*"])
def test_blocks_of_a_subclassed_model(layers):
    assert_trains_as_plain(
        network, X, Y, lambda model: kr.checkpointed(model, layers=layers), optimizer="sgd"
    )


def test_layers_of_a_functional_model_and_its_file(tmp_path):
    def build():
        x = inputs = keras.Input((8,))
        for number in range(3):
            x = L.Dropout(0.1)(L.Dense(8, "gelu", name=f"inner_{number}")(x))
        return keras.Model(inputs, L.Dense(8)(x))

    def place(model):
        return kr.checkpointed(model, layers="inner_*")

    assert_trains_as_plain(build, X, Y, place, optimizer="sgd")
    model = place(build())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.recomputed_layers) == len(model.recomputed_layers) == 3
    outputs = [keras.ops.convert_to_numpy(each(X)) for each in (model, loaded)]
    np.testing.assert_allclose(*outputs, rtol=1e-6)


def test_layers_may_be_given_themselves_and_numbers_be_of_numpy():
    x = inputs = keras.Input((8,))
    for number in range(4):
        x = L.Dense(8, "gelu", name=f"dense_{number}")(x)
    model = keras.Model(inputs, x)
    first, third = model.get_layer("dense_0"), model.get_layer("dense_2")
    assert kr.checkpointed(model, layers=third).recomputed_layers == ("dense_2",)
    chosen = kr.checkpointed(model, layers=[third, "dense_0"]).recomputed_layers
    assert chosen == ("dense_0", "dense_2")
    assert kr.checkpointed(model, at=third).plan.checkpoints == ("dense_2",)
    assert kr.checkpointed(model, at=[first, "dense_2"]).plan.checkpoints == ("dense_0", "dense_2")
    counted = kr.checkpointed(model, every=np.int64(2))
    assert counted.plan.checkpoints == kr.checkpointed(model, every=2).plan.checkpoints


def test_a_layer_that_is_not_there():
    with pytest.raises(kr.errors.InvalidArgumentError, match="matches no layer"):
        kr.checkpointed(network(), layers="blok_*")
    with pytest.raises(kr.errors.InvalidArgumentError, match="is not built"):
        kr.checkpointed(Net(), layers=L.Embedding)
