"""Layers recomputed one by one, wherever they are: chosen by class, name or function; the numbers
are the plain model's.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, UnsupportedError
from tests.oracle import assert_same_training, gradient_step, losses_of_fit

from ..networks import FEATURES, UNITS, numbers

X, Y = numbers(8, FEATURES), numbers(8, UNITS, seed=1)


@keras.saving.register_keras_serializable(package="tests.blocks")
class Block(keras.layers.Layer):
    """Two dense layers with what Keras leaves in layers: losses, statistics, random numbers."""

    def __init__(self, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed
        self.up = keras.layers.Dense(
            2 * UNITS,
            activation="tanh",
            name="up",
            activity_regularizer=keras.regularizers.L2(0.01),
        )
        self.norm = keras.layers.BatchNormalization(name="norm", momentum=0.5)
        self.dropout = keras.layers.Dropout(0.3, seed=seed)
        self.down = keras.layers.Dense(UNITS, name="down")

    def build(self, shape):
        self.up.build(shape)
        self.norm.build((*shape[:-1], 2 * UNITS))
        self.down.build((*shape[:-1], 2 * UNITS))

    def call(self, x, training=None):
        return x + self.down(
            self.dropout(self.norm(self.up(x), training=training), training=training)
        )

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


@keras.saving.register_keras_serializable(package="tests.blocks")
class Encoder(keras.layers.Layer):
    """The blocks sit inside one layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block(seed=n, name=f"block_{n}") for n in range(3)]

    def build(self, shape):
        for block in self.blocks:
            block.build(shape)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return x


@keras.saving.register_keras_serializable(package="tests.blocks")
class Subclassed(keras.Model):
    """A model whose call is its own, with a name behind ``recomputed_layers`` in the alphabet."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.stem = keras.layers.Dense(UNITS)
        self.trunk = Encoder(name="trunk")
        self.zeta = keras.layers.Dense(UNITS)

    def call(self, x, training=None):
        return self.zeta(self.trunk(self.stem(x), training=training))

    def get_config(self):
        return {"name": self.name}


def subclassed() -> keras.Model:
    model = Subclassed(name="mine")
    model(X)
    return model


def functional() -> keras.Model:
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(UNITS)(inputs)
    inner_inputs = keras.Input((UNITS,))
    inner = keras.Model(inner_inputs, Encoder(name="encoder")(inner_inputs), name="inner")
    return keras.Model(inputs, keras.layers.Dense(UNITS)(inner(x)), name="whole")


BUILDERS = {"subclassed": subclassed, "functional": functional}


def model_pair(name: str) -> tuple[keras.Model, keras.Model]:
    made = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        made.append(BUILDERS[name]())
    return made[0], made[1]


def fitted(model: keras.Model, mode: str) -> list[float]:
    return losses_of_fit(model, X, Y, mode=mode, learning_rate=0.05, batch_size=4, epochs=2)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("functional", "graph"),
        pytest.param("subclassed", "jit", marks=pytest.mark.long),
        pytest.param("subclassed", "eager", marks=pytest.mark.long),
    ],
)
def test_it_trains_as_the_plain_model(name, mode):
    plain, base = model_pair(name)
    ours = kr.checkpointed(base, layers=Block)
    assert type(ours).__name__ == type(base).__name__
    assert isinstance(ours, type(base))
    options = {"learning_rate": 0.05, "batch_size": 4, "epochs": 2}
    assert_same_training(ours, plain, X, Y, mode=mode, **options)
    assert not base.compiled
    assert not any(
        {"call", "quantized_call"} & set(vars(layer)) for layer in base._flatten_layers()
    ), "nothing is left behind"


def replays(model: keras.Model) -> int:
    """Return how often a training step computes a tanh; a plain one does so once per block."""

    step = tf.function(gradient_step(model, loss=tf.reduce_sum))
    graph = step.get_concrete_function(tf.TensorSpec(X.shape)).graph
    return sum(op.type == "Tanh" for op in graph.get_operations())


@pytest.fixture(
    scope="module", params=["subclassed", pytest.param("functional", marks=pytest.mark.long)]
)
def plain(request):
    return BUILDERS[request.param]()


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        pytest.param(Block, 3, marks=pytest.mark.long),
        pytest.param((Block, Encoder), 3, marks=pytest.mark.long),
        pytest.param("block_*", 3, marks=pytest.mark.long),
        pytest.param("*/block_1", 1, marks=pytest.mark.long),
        pytest.param(["block_0", "block_2"], 2, marks=pytest.mark.long),
        (lambda layer: layer.name in ("block_1", "up"), 3),
        pytest.param(Encoder, 3, marks=pytest.mark.long),
    ],
)
def test_what_is_chosen_is_replayed_once(plain, layers, count):
    ours = kr.checkpointed(plain, layers=layers)
    assert replays(ours) == 3 + count, (
        "of layers in each other the outermost is recomputed, and what is inside once"
    )
    assert replays(plain) == 3


def test_names_of_the_layers_that_are_recomputed():
    *_, base = model_pair("subclassed")
    ours = kr.checkpointed(base, layers="block_*")
    assert sorted(path.split("/")[-1] for path in ours.recomputed_layers) == [
        "block_0",
        "block_1",
        "block_2",
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDERS)
def test_it_is_saved_and_loaded(name, tmp_path):
    plain, base = model_pair(name)
    ours = kr.checkpointed(base, layers="block_[01]")
    fitted(ours, "graph")
    ours.save(tmp_path / "ours.keras")
    back = keras.saving.load_model(tmp_path / "ours.keras")
    assert isinstance(back, type(base))
    assert sorted(p.split("/")[-1] for p in back.recomputed_layers) == ["block_0", "block_1"]
    assert replays(back) == 5
    np.testing.assert_allclose(back.predict(X, verbose=0), ours.predict(X, verbose=0), rtol=1e-6)
    ours.save_weights(tmp_path / "ours.weights.h5")
    uncompiled = model_pair(name)[0]
    uncompiled.load_weights(tmp_path / "ours.weights.h5", skip_mismatch=False)
    np.testing.assert_allclose(
        uncompiled.predict(X, verbose=0), ours.predict(X, verbose=0), rtol=1e-6
    )
    plain.save_weights(tmp_path / "plain.weights.h5")
    kr.checkpointed(uncompiled, layers=Block).load_weights(tmp_path / "plain.weights.h5")


@pytest.mark.long
def test_a_clone_recomputes_its_own_layers():
    *_, base = model_pair("functional")
    ours = kr.checkpointed(base, layers="block_[01]")
    clone = keras.models.clone_model(ours)
    assert sorted(path.split("/")[-1] for path in clone.recomputed_layers) == ["block_0", "block_1"]
    assert not set(clone._flatten_layers()) & set(base._flatten_layers())
    assert replays(clone) == 5
    assert replays(keras.models.clone_model(clone)) == 5
    shared = keras.models.clone_model(ours, clone_function=lambda layer: layer)
    assert replays(shared) == 5
    outer_inputs = keras.Input((FEATURES,))
    assert not isinstance(keras.Model(outer_inputs, ours(outer_inputs)), type(ours))


def test_a_clone_that_cannot_recompute_is_refused():
    @keras.saving.register_keras_serializable(package="tests.blocks")
    class Deep(keras.Model):
        def __init__(self, depth, **kwargs):
            inputs = x = keras.Input((UNITS,))
            for n in range(depth):
                x = Block(name=f"block_{n}")(x)
            super().__init__(inputs, x, **kwargs)

    ours = kr.checkpointed(Deep(2, name="deep"), layers=Block)
    with pytest.raises(
        UnsupportedError,
        match=r"clone_model of 'deep' would not recompute '.*block_0': the constructor of Deep ",
    ):
        keras.models.clone_model(ours)

    def fewer(layer):
        return keras.layers.Dense(UNITS) if isinstance(layer, Encoder) else layer

    inputs = keras.Input((UNITS,))
    ours = kr.checkpointed(
        keras.Model(inputs, Encoder(name="trunk")(inputs), name="mine"), layers="block_0"
    )
    with pytest.raises(
        UnsupportedError,
        match=r"recompute '.*block_0': the clone of 'trunk' has 0 inner layers, and the "
        "original has 15",
    ):
        keras.models.clone_model(ours, clone_function=fewer)


@pytest.mark.long
def test_masks_go_in_and_out():
    """A recurrent layer and a dense one, chosen: the mask of the embedding reaches the loss.

    Both keep something that can be made again. Of a dense layer without an activation that depends
    on Keras: of those that multiply without a change of shape the gradient reads nothing but its
    input, and a warning says so.
    """
    losses = []
    for choose in (False, True):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(6, 4, mask_zero=True)(inputs)
        x = keras.layers.LSTM(4, return_sequences=True, name="again")(x)
        model = keras.Model(inputs, keras.layers.Dense(1, "tanh", name="end")(x))
        model = kr.checkpointed(model, layers=["again", "end"]) if choose else model
        words = np.array([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]])
        losses.append(losses_of_fit(model, words, np.ones((2, 5, 1)), epochs=3))
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.long
def test_a_training_step_of_its_own_is_recomputed():
    class Own(Subclassed):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.zeta(self.trunk(self.stem(x), training=True)) - y) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, [v.value for v in weights]), weights)
            return {"loss": loss}

    losses = []
    for choose in (False, True):
        keras.utils.set_random_seed(1)
        model = Own(name="mine")
        model(X)
        losses.append(fitted(kr.checkpointed(model, layers=Block) if choose else model, "graph"))
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kr.checkpointed(subclassed(), layers="blok_*"),
            r"layers='blok_\*' matches no layer of 'mine'.* Similar names are 'block_",
        ),
        (
            lambda: kr.checkpointed(subclassed(), layers=keras.layers.LSTM),
            "matches no layer of 'mine', a Subclassed. It has 'dense",
        ),
        (
            lambda: kr.checkpointed(subclassed(), layers=lambda _: False),
            "matches no layer of 'mine'",
        ),
        (
            lambda: kr.checkpointed(subclassed(), layers=[3]),
            r"layers=\[3\] names no layers. Give a class of layers, a pattern",
        ),
        (lambda: kr.checkpointed(subclassed(), layers=3), "layers=3 names no layers. Give a class"),
        (
            lambda: kr.checkpointed(subclassed(), layers=["block_*", "trunkk"]),
            "layers='trunkk' matches no layer of 'mine'.* Similar names are 'trunk'",
        ),
        (
            lambda: kr.checkpointed(subclassed(), layers=[subclassed().zeta]),
            "layers=<Dense name=dense.*, .*> matches no layer of 'mine'",
        ),
        (
            lambda: kr.checkpointed(subclassed(), layers=Block, every=2),
            "every=2 and layers=.* were both given",
        ),
        (
            lambda: kr.checkpointed(Subclassed(name="new"), layers=Block),
            "'new' is not built: .* call it on data",
        ),
        (lambda: kr.checkpointed(3, layers=Block), "3 is not a Keras model"),
    ],
)
def test_what_is_refused(call, message):
    with warnings.catch_warnings(), pytest.raises(InvalidArgumentError, match=message):
        call()
