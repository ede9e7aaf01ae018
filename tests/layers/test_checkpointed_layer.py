"""A Keras layer or model in ``checkpoint`` is a layer to Keras, and a function to its callers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.layers.checkpointed_layer import CheckpointedLayer
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint of .* saves no memory")

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
IDS = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 0, 0]])


def plain(layer):
    return layer


def block():
    layers = [
        keras.layers.Dense(6, "gelu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(4),
    ]
    return keras.Sequential(layers, name="block")


@keras.saving.register_keras_serializable(package="tests.checkpointed_layer")
class Net(keras.Model):
    """Wrapped layers and a model as attributes, in a list and in a dict."""

    def __init__(self, wrap=kr.checkpoint, **kwargs):
        super().__init__(**kwargs)
        self.first = wrap(keras.layers.Dense(4, "tanh", kernel_regularizer="l2"))
        self.blocks = [wrap(keras.layers.Dense(4, "tanh")) for _ in range(2)]
        self.named = {"last": wrap(block())}
        self.head = keras.layers.Dense(1)

    def call(self, x, training=None):
        x = self.first(x)
        for each in self.blocks:
            x = each(x)
        return self.head(self.named["last"](x, training=training))


def functional(wrap=kr.checkpoint):
    inputs = keras.Input((4,))
    return keras.Model(
        inputs, keras.layers.Dense(1)(wrap(block())(wrap(keras.layers.Dense(4, "tanh"))(inputs)))
    )


def trained(make, wrap, **options):
    keras.utils.set_random_seed(0)
    model = make(wrap)
    model(X)
    model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    losses = model.fit(X, X[:, :1], epochs=3, shuffle=False, verbose=0).history["loss"]
    return model, [losses, *model.get_weights()]


def assert_same(ours, theirs, rtol=1e-4, atol=1e-5):
    assert_all_close(ours, theirs, rtol=rtol, atol=atol)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(Net, {}, id="subclassed, graph", marks=LONG),
        pytest.param(Net, {"run_eagerly": True}, id="subclassed, eager"),
        pytest.param(Net, {"jit_compile": True}, id="subclassed, jit", marks=LONG),
        pytest.param(
            *(functional, {}),
            id="functional, graph",
            marks=pytest.mark.long(every_case=True),
        ),
        pytest.param(functional, {"jit_compile": True}, id="functional, jit", marks=LONG),
    ],
)
def test_a_model_of_wrapped_layers_trains_as_the_plain_one(make, options):
    (ours, found) = trained(make, kr.checkpoint, **options)
    (theirs, wanted) = trained(make, plain, **options)
    assert_same(found, wanted)
    assert ours.count_params() == theirs.count_params()
    assert [w.name for w in ours.trainable_weights] == [w.name for w in theirs.trainable_weights]


@pytest.mark.long
def test_a_wrapped_attribute_takes_the_memory_of_a_checkpoint():
    peaks = []
    for wrap in (kr.checkpoint, plain):
        body = keras.Sequential(
            [keras.Input((32,)), *(keras.layers.Dense(32, "gelu") for _ in range(8))]
        )
        halves = [keras.Sequential(body.layers[:4]), keras.Sequential(body.layers[4:])]

        class Two(keras.Model):
            def __init__(self, parts):
                super().__init__()
                self.parts = parts

            def call(self, x):
                for part in self.parts:
                    x = part(x)
                return x

        model = Two([wrap(half) for half in halves])
        model.compile("sgd", "mse", jit_compile=True)
        x = np.zeros((2048, 32), np.float32)
        model(x[:1])
        peaks.append(profile(model, x, x).peak_bytes)
    assert peaks[0] < 0.75 * peaks[1]


def test_weight_files_of_the_plain_model_load_and_ours_load_there(tmp_path):
    for make in (Net, functional):
        ours, theirs = make(), make(plain)
        for each in (ours, theirs):
            each(X)
        for source, target in ((ours, theirs), (theirs, ours)):
            source.set_weights([w + 1 for w in source.get_weights()])
            source.save_weights(tmp_path / "model.weights.h5")
            target.load_weights(tmp_path / "model.weights.h5")
            np.testing.assert_allclose(target(X), source(X), rtol=1e-5)


def test_it_is_the_layer_with_another_call():
    layer = keras.layers.Dense(4, "gelu", name="dense")
    ours = kr.checkpoint(layer, policy=kr.policies.save_matmuls)
    assert isinstance(ours, keras.layers.Dense)
    assert ours.__wrapped__ is layer
    assert (ours.units, ours.name, ours.__name__, ours.policy) == (
        4,
        "dense",
        "dense",
        kr.policies.save_matmuls,
    )
    assert "checkpoint(<Dense name=dense" in repr(ours)
    np.testing.assert_allclose(ours(X), layer(X), rtol=1e-6)
    assert ours.kernel is layer.kernel
    assert kr.checkpoint(layer, policy=kr.policies.save_matmuls) is ours
    assert kr.checkpoint(ours, policy=kr.policies.save_matmuls) is ours
    assert kr.checkpoint(layer) is not ours
    assert (
        kr.replay_count(kr.checkpoint(layer), X)
        == kr.replay_count(lambda x: kr.checkpoint(layer)(x) + 0, X)
        > 0
    )
    assert type(layer)(2)(X).shape == (8, 2), "the class is as it was"
    for function in (tf.function(ours), tf.function(ours, jit_compile=True)):
        np.testing.assert_allclose(function(X), layer(X), rtol=1e-5, atol=1e-6)


def test_an_attribute_called_policy_stays_the_layers():
    class Agent(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.policy = keras.layers.Dense(2, "tanh")

        def call(self, x):
            return self.policy(x)

    agent = Agent()
    np.testing.assert_allclose(kr.checkpoint(agent)(X), agent(X), rtol=1e-6)
    assert kr.checkpoint(agent).policy is agent.policy


@pytest.mark.parametrize("on", ["wrapper", "layer"])
def test_trainable_is_one_state(on):
    layer = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((4,)), kr.checkpoint(layer), keras.layers.Dense(1)])
    (layer if on == "layer" else model.layers[0]).trainable = False
    model(X, training=True)
    assert len(model.trainable_weights) == 2
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
    layer.trainable = True
    model(X, training=True)
    assert len(model.trainable_weights) == 4
    np.testing.assert_allclose(layer.moving_mean, 0.01 * X.mean(axis=0), rtol=1e-4)


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x**2))
        return tf.exp(tf.sin(x))


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with the layer itself"])
def test_losses_count_once_per_call(together):
    """The layer and two of its wrappers in one model: of each call the losses, and weights once."""

    class Model(keras.Model):
        def __init__(self, wrap):
            super().__init__()
            self.penalty = Penalty(activity_regularizer="l2")
            self.dense = keras.layers.Dense(4, kernel_regularizer="l2")
            self.wrapped, self.again = wrap(self.penalty), wrap(self.dense)

        def call(self, x):
            x = self.again(self.wrapped(x))
            return self.dense(self.penalty(x) if together else x)

    found = []
    for wrap in (kr.checkpoint, plain):
        keras.utils.set_random_seed(0)
        model = Model(wrap)
        model(X)
        found.append([len(model.weights), np.sort(model.losses)])
    assert len(found[1][1]) == (5 if together else 3)
    assert_same(found[0], found[1])


def test_losses_of_a_layer_wrapped_in_a_call_are_the_models():
    found = []
    for wrap in (kr.checkpoint, plain):

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.penalty = Penalty(activity_regularizer="l2")

            def call(self, x):
                return wrap(self.penalty)(wrap(self.penalty)(x))  # noqa: B023

        model = Model()
        for _ in range(2):
            model(X)
        found.append(np.sort(model.losses))
        wrap(model.penalty)(2 * X)
        assert len(model.losses) == 2, "as of the layer alone"
    assert len(found[0]) == 4
    assert_same(*found)


def test_masks_arrive_and_leave():
    found = []
    for wrap in (kr.checkpoint, plain):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((5,), dtype="int32")
        x = wrap(keras.layers.Embedding(9, 4, mask_zero=True))(inputs)
        x = wrap(keras.layers.LSTM(4, return_sequences=True))(x)
        x = wrap(keras.layers.MultiHeadAttention(2, 2))(x, x)
        model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(x))
        assert [layer.supports_masking for layer in model.layers[1:]] == [True] * 4
        found.append([model(IDS, training=True), model(IDS)])
    assert_same(*found)


@LONG
def test_layers_of_keras_that_hold_layers_take_it():
    sequence = np.random.default_rng(1).normal(size=(4, 5, 4)).astype(np.float32)
    found = []
    for wrap in (kr.checkpoint, plain):
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((5, 4))
        x = keras.layers.Bidirectional(wrap(keras.layers.GRU(3, return_sequences=True)))(x)
        x = keras.layers.TimeDistributed(wrap(keras.layers.Dense(3, "tanh")))(x)
        x = keras.layers.RNN([wrap(keras.layers.LSTMCell(3)), wrap(keras.layers.GRUCell(2))])(x)
        model = keras.Model(inputs, x)
        model.compile("sgd", "mse")
        model.fit(sequence, sequence[:, 0, :2], verbose=0)
        found.append(model.get_weights())
        assert (wrap is plain) != any(
            isinstance(each, CheckpointedLayer) for each in model._flatten_layers()
        )
    assert_same(*found)
    back = model.from_config(model.get_config())
    assert len(back.weights) == len(model.weights)


@pytest.mark.long
def test_precision_lora_and_quantization_are_the_layers():
    layer = keras.layers.Dense(8, dtype="mixed_bfloat16")
    ours = kr.checkpoint(layer)
    assert ours(X).dtype == tf.bfloat16
    assert ours.variable_dtype == layer.kernel.dtype == "float32"
    ours.enable_lora(2)
    assert len(ours.trainable_weights) == len(layer.trainable_weights) == 3
    quantized = keras.layers.Dense(8)
    ours = kr.checkpoint(quantized)
    ours(X)
    ours.quantize("int8")
    np.testing.assert_allclose(ours(X), quantized(X), rtol=1e-5)


def test_one_layer_twice_in_a_functional_model(tmp_path):
    layer = keras.layers.Dense(4, "tanh", name="shared")
    inputs = keras.Input((4,))
    same = keras.Model(inputs, kr.checkpoint(layer)(kr.checkpoint(layer)(inputs)))
    layer = keras.layers.Dense(4, "tanh", name="shared")
    mixed = keras.Model(inputs, kr.checkpoint(layer)(layer(inputs)))
    assert [each.name for each in mixed.layers[1:]] == ["shared", "shared_checkpoint"]
    for model in (same, mixed):
        layer = model.layers[1]
        assert len(model.weights) == 2
        np.testing.assert_allclose(model(X), layer(layer(X)), rtol=1e-6)
        model.save(tmp_path / "model.keras")
        back = keras.saving.load_model(tmp_path / "model.keras")
        assert len(back.weights) == 2
        np.testing.assert_allclose(back(X), layer(layer(X)), rtol=1e-6)


def test_one_wrapped_layer_in_two_models():
    shared = kr.checkpoint(keras.layers.Dense(4, "tanh"))
    models = [
        keras.Sequential([keras.Input((4,)), shared, keras.layers.Dense(1)]) for _ in range(2)
    ]
    for model in models:
        before = shared.kernel.numpy()
        model.compile("sgd", "mse")
        model.fit(X, X[:, :1], verbose=0)
        assert np.abs(shared.kernel.numpy() - before).max() > 0
    assert models[0].weights[0] is models[1].weights[0]


def test_a_call_set_on_the_layer_is_recomputed_too():
    layer = keras.layers.Dense(4)
    ours = kr.checkpoint(layer)
    ours(X)
    layer.call = lambda x: tf.exp(tf.sin(x))
    np.testing.assert_allclose(ours(X), np.exp(np.sin(X)), rtol=1e-6)


def test_a_whole_model_is_trained_and_saved_by_itself(tmp_path):
    model = block()
    model.build((None, 4))
    ours = kr.checkpoint(model)
    ours.compile("sgd", "mse")
    ours.fit(X, X, verbose=0)
    ours.save(tmp_path / "model.keras")
    back = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(back, CheckpointedLayer)
    assert back.compiled
    np.testing.assert_allclose(back.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


def test_a_layer_without_configuration_is_refused_as_the_plain_one():
    class Block(keras.layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    messages = []
    for wrap in (plain, kr.checkpoint):
        with pytest.raises(NotImplementedError) as caught:
            wrap(Block(keras.layers.Dense(1))).get_config()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
