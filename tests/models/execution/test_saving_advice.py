"""Checkpoints between which nothing is recomputed say so when they train, and those that save do
not.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.liveness import profile
from keras_recompute.models.execution.input_specs import specs_from_sample, targets_in
from keras_recompute.models.measures.step_peak import StepPeaks
from keras_recompute.models.measures.trained_step import trained_step
from keras_recompute.models.plans.checkpointed import functional_model

from ..plans.test_memory_plan import encoder

L = keras.layers


def chain(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


def linear():
    return chain((8,), *(L.Dense(8) for _ in range(9)))


def relus():
    return chain((8,), *(L.Dense(8, "relu") for _ in range(9)))


def gelus():
    return chain((8,), *(L.Dense(8, "gelu") for _ in range(9)))


def convolutions():
    """Ready-made halves of a VGG: each layer reads and hands on what its gradient reads."""
    layers = [L.Conv2D(4, 3, padding="same", activation="relu") for _ in range(4)]
    return chain((8, 8, 3), *layers, L.MaxPooling2D(2), L.Flatten(), L.Dense(2))


def normalized():
    layers = [(L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU()) for _ in range(3)]
    return chain((8, 8, 3), *sum(layers, ()), L.GlobalAveragePooling2D())


def recurrent():
    return chain((8, 4), L.LSTM(4, return_sequences=True), L.Dense(2))


def batch_of(model, size=4):
    shape = functional_model(model).inputs[0].shape[1:]
    x = np.random.default_rng(0).random((size, *shape)).astype("float32")
    return x, np.zeros((size, *functional_model(model).outputs[0].shape[1:]), "float32")


def said(model, times=1, **options):
    model.compile("sgd", "mse", **{"jit_compile": False, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecomputeWarning)
        for _ in range(times):
            model.fit(*batch_of(model), verbose=0)
    return [str(w.message) for w in caught if issubclass(w.category, RecomputeWarning)]


@pytest.mark.parametrize(
    "make",
    [
        linear,
        pytest.param(relus, marks=pytest.mark.long),
        pytest.param(convolutions, marks=pytest.mark.long),
    ],
)
def test_checkpoints_that_recompute_nothing_say_so_once(make):
    ours = kr.checkpointed(make(), every=1)
    (message,) = said(ours, times=2)
    assert f"the checkpoints of {ours.name!r} save no memory" in message
    assert "a checkpoint after about every 3, " in message, "the root of 9 layers, or of 7"


SAVING = {
    "gelu": (gelus, 1),
    "linear": (linear, 3),
    "batch norm": (normalized, 1),
    "convolutions": (convolutions, 2),
    "a layer cut along time": (recurrent, 1),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "gelu" else pytest.param(name, marks=pytest.mark.long) for name in SAVING],
)
def test_checkpoints_that_save_are_not_spoken_of(name):
    make, every = SAVING[name]
    assert not said(kr.checkpointed(make(), every=every))


@pytest.mark.long
def test_what_cannot_be_known_so_is_not_said():
    """Under XLA passes save memory without a replay, and a sample was measured before."""
    assert not said(kr.checkpointed(linear(), every=1), jit_compile=True)
    model = linear()
    model.compile("sgd", "mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        ours = kr.checkpointed(model, every=1, sample=batch_of(model))
    assert not said(ours)


@pytest.mark.long
def test_inference_is_not_spoken_of_and_training_behind_frozen_layers_is():
    ours = kr.checkpointed(linear(), every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        tf.function(ours)(tf.ones((2, 8)))
        ours.predict(np.ones((2, 8)), verbose=0)
    for layer in ours.layers[:-1]:
        layer.trainable = False
    (message,) = said(ours)
    assert "no layer in front of the last of them has weights that train" in message


# Three kinds of networks in which recurrent layers keep most. Before these were cut along time, a
# step with checkpoints took more without jit: the replay of a loop stands beside what it keeps.


def captcha():
    """A strip of an image is a step of the sequence."""
    images = keras.Input((128, 32, 1))
    x = L.MaxPooling2D(2)(L.Conv2D(16, 3, activation="relu", padding="same")(images))
    x = L.MaxPooling2D(2)(L.Conv2D(16, 3, activation="relu", padding="same")(x))
    x = L.Dropout(0.2)(L.Dense(32, "relu")(L.Reshape((32, 8 * 16))(x)))
    x = L.Bidirectional(L.LSTM(64, return_sequences=True, dropout=0.25))(x)
    x = L.Bidirectional(L.LSTM(32, return_sequences=True, dropout=0.25))(x)
    return keras.Model(images, L.Dense(10)(x))


def video():
    frames, mask = keras.Input((24, 16, 16, 3)), keras.Input((24,), dtype="bool")
    features = chain((16, 16, 3), L.Conv2D(8, 3, activation="relu"), L.GlobalAveragePooling2D())
    x = L.TimeDistributed(features)(frames)
    x = L.GRU(64, return_sequences=True)(x, mask=mask)
    return keras.Model([frames, mask], L.Dense(4)(L.Dropout(0.4)(L.GRU(64)(x))))


def traffic():
    """Each road is a sequence of its own, after its neighbours were mixed in by a product."""
    steps, roads = 12, 16
    near = tf.constant(np.random.default_rng(0).random((roads, roads)), tf.float32)
    inputs = keras.Input((steps, roads, 4))
    x = L.Dense(8, "relu")(keras.ops.einsum("ij,btjf->btif", near, inputs))
    x = keras.ops.reshape(L.Permute((2, 1, 3))(x), (-1, steps, 8))
    x = L.Dense(4)(L.LSTM(64, activation="relu")(x))
    return keras.Model(inputs, keras.ops.reshape(x, (-1, roads, 4)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "size", "every"), [(captcha, 64, 3), (video, 128, 1), (traffic, 64, 2)]
)
def test_networks_around_recurrent_layers_take_less_without_jit(make, size, every):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        ours, plain = peaks_without_jit(make(), size, every)
    assert ours < 0.9 * plain


def peaks_without_jit(model, size, every):
    """What a step of ``model`` takes in the process, with checkpoints and without."""
    x = keras.tree.map_structure(lambda t: np.ones((size, *t.shape[1:]), t.dtype), model.input)
    y = np.zeros((size, *model.output.shape[1:]), "float32")
    model.compile("adam", "mse", jit_compile=False)
    inputs = keras.tree.pack_sequence_as(model.input, specs_from_sample(model, (x, y)))
    peaks = StepPeaks(trained_step(model, inputs, targets_in((x, y))), is_compiled=False)
    ours, plain = peaks.of(kr.checkpointed(model, every=every)), peaks.of(model)
    print(f"{model.name}: {ours / 2**20:.1f} MiB, plain {plain / 2**20:.1f}")
    return ours, plain


def test_blocks_inside_one_layer_are_spoken_of_once():
    (message,) = first_fit(encoder, 1, 64, jit=False)
    assert "save next to nothing: nearly all its weights are inside 'encoder', a Encoder" in message


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::keras_recompute.errors.RecomputeWarning")
def test_blocks_inside_one_layer_take_what_they_take_plainly_without_jit():
    ours, plain = peaks_without_jit(encoder(), 4096, 1)
    assert ours > 0.95 * plain
    assert not first_fit(encoder, 1, 64, jit=True), "XLA's passes save memory there"
    ours, plain = compiled_peaks(encoder, 1, 4096)
    assert ours < 0.9 * plain


# Where weights take nearly all, nothing is left to save.


def table_of_words():
    """The rows that a batch looks up are few of 100,000."""
    ids = keras.Input((16,), dtype="int32")
    x = L.Embedding(100_000, 32)(ids)
    for _ in range(4):
        x = L.Dense(32, "gelu")(x)
    return keras.Model(ids, L.Dense(4)(L.GlobalAveragePooling1D()(x)))


def wide(width=1024):
    return chain((width,), *(L.Dense(width, "gelu") for _ in range(4)), L.Dense(4))


def vgg():
    layers = []
    for channels in (16, 32):
        layers += [L.Conv2D(channels, 3, padding="same", activation="relu") for _ in range(2)]
        layers.append(L.MaxPooling2D(2))
    return chain((32, 32, 3), *layers, L.Flatten(), L.Dense(64, "relu"), L.Dense(4))


def narrowing():
    """The first of its sections keeps more than the others together, and less than all."""
    layers = []
    for channels in (16, 24, 48):
        layers += [L.Conv2D(channels, 3, padding="same", activation="relu") for _ in range(3)]
        layers.append(L.MaxPooling2D(2))
    return chain((32, 32, 3), *layers, L.Flatten(), L.Dense(1536, "relu"), L.Dense(4))


HEAVY = {"embedding": (table_of_words, 2, 4), "wide": (wide, 2, 8)}
LIGHT = {
    "embedding": (table_of_words, 2, 2048),
    "wide": (wide, 2, 2048),
    "vgg": (vgg, 2, 64),
    "narrowing": (narrowing, 4, 48),
}


def first_fit(make, every, batch, jit):
    """What the first ``fit`` says of the checkpoints."""
    model = make()
    ours = kr.checkpointed(model, every=every)
    ours.compile("adam", "mse", jit_compile=jit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecomputeWarning)
        ours.fit(*batch_of(model, batch), batch_size=batch, epochs=2, verbose=0)
    return [str(w.message) for w in caught if issubclass(w.category, RecomputeWarning)]


def compiled_peaks(make, every, batch):
    """The bytes that XLA gives the step that ``fit`` trains, with checkpoints and without."""
    model = make()
    models = kr.checkpointed(model, every=every), model
    for each in models:
        each.compile("adam", "mse", jit_compile=True)
    return [profile(each, *batch_of(model, batch)).peak_bytes for each in models]


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", HEAVY)
def test_where_weights_leave_nothing_to_save_both_figures_are_said_once(name, jit):
    (message,) = first_fit(*HEAVY[name], jit)
    assert "save next to nothing: a training step is estimated to take" in message
    assert "checkpointed(..., sample=batch)" in message


@pytest.mark.long
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", LIGHT)
def test_larger_batches_of_the_same_networks_are_not_spoken_of(name, jit):
    assert not first_fit(*LIGHT[name], jit)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::keras_recompute.errors.RecomputeWarning")
def test_what_is_spoken_of_is_what_xla_compiles():
    for name, case in HEAVY.items():
        ours, plain = compiled_peaks(*case)
        assert ours > 0.97 * plain, name
    for name, case in LIGHT.items():
        ours, plain = compiled_peaks(*case)
        assert ours < 0.9 * plain, name


def frozen(front, head):
    """Layers whose weights do not train, in front of some that do."""
    keras.utils.set_random_seed(0)
    layers = [L.Dense(64, "gelu", trainable=False, name=f"frozen_{n}") for n in range(front)]
    return chain((64,), *layers, *(L.Dense(64, "gelu") for _ in range(head)), L.Dense(1))


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "graph"])
def test_frozen_layers_in_front_of_the_last_checkpoint_keep_nothing(jit):
    plain, ours = frozen(9, 0), kr.checkpointed(frozen(9, 0), every=4)
    (message,) = said(ours, times=2, jit_compile=jit)
    assert "no layer in front of the last of them has weights that train" in message
    plain.compile("sgd", "mse", jit_compile=jit)
    x, y = batch_of(plain, 2048)
    plain_peak = profile(plain, x, y).peak_bytes
    assert profile(ours, x, y).peak_bytes == plain_peak


def frozen_tower():
    """A tower that trains, one that does not, and a head on both."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((64,), batch_size=2048)
    trained, fixed = inputs, inputs
    for number in range(4):
        trained = L.Dense(64, "gelu", name=f"trained_{number}")(trained)
    for number in range(4):
        fixed = L.Dense(64, "gelu", trainable=False, name=f"frozen_{number}")(fixed)
    return keras.Model(inputs, L.Dense(1)(L.Concatenate()([trained, fixed])))


def test_no_gradient_is_computed_of_frozen_layers_behind_the_last_checkpoint():
    plain, ours = frozen_tower(), kr.checkpointed(frozen_tower(), at=["trained_2", "frozen_1"])
    for model in (plain, ours):
        model.compile("sgd", "mse", jit_compile=True)
    x, y = batch_of(plain, 2048)
    compiled = profile(ours, x, y)
    backward = [str(step.op_name) for step in compiled.steps if step.phase == "backward"]
    assert any("trained_3" in name for name in backward)
    assert not any("frozen" in name for name in backward)
    for model in (plain, ours):
        model.train_on_batch(x, y)
    for weight, expected in zip(ours.trainable_variables, plain.trainable_variables):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{"every": 2}, {"layers": "scaled*"}])
def test_a_layer_that_reads_a_variable_of_its_own_trains(how):
    """Keras does not know the variable, and a tape of the user's own differentiates by it."""
    factor = tf.Variable(0.5)

    class Scaled(L.Layer):
        def call(self, x):
            return tf.nn.gelu(tf.nn.gelu(x * factor) * factor)

    keras.utils.set_random_seed(0)
    plain = chain((64,), *(Scaled() for _ in range(6)), L.Dense(1, trainable=False))
    ours = kr.checkpointed(plain, **how)
    x, _ = batch_of(plain, 2048)

    def gradient(model):
        @tf.function(jit_compile=True)
        def run(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True))
            return tape.gradient(loss, factor)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        found = gradient(ours)(x)
    np.testing.assert_allclose(found, gradient(plain)(x), rtol=1e-5)
    assert profile(gradient(ours), x).peak_bytes < 0.7 * profile(gradient(plain), x).peak_bytes


@pytest.mark.parametrize("how", [{"every": 3}, {"layers": L.Dense}])
def test_a_frozen_network_in_a_function_that_a_tape_outside_differentiates(how):
    """By its input: inside of the function no tape records it."""
    plain = frozen(9, 0)
    plain.trainable = False
    ours = kr.checkpointed(plain, **how)
    x = tf.convert_to_tensor(batch_of(plain, 2048)[0])

    def gradient(model):
        inner = tf.function(lambda x: tf.reduce_mean(model(x, training=True)))

        @tf.function(jit_compile=True)
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = inner(x)
            return tape.gradient(loss, x)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        found = gradient(ours)(x)
    np.testing.assert_allclose(found, gradient(plain)(x), rtol=1e-4, atol=1e-9)
    peaks = [profile(gradient(model), x).not_always_live_peak_bytes for model in (ours, plain)]
    assert peaks[0] < 0.8 * peaks[1]
