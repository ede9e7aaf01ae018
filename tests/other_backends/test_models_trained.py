"""Models with checkpoints train as the plain ones, with dropout, statistics and masks."""

import sys
import warnings

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain, every, trained

import keras_recompute as kr

L = keras.layers
# torch.compile takes minutes.
JIT = {"jit_compile": keras.config.backend() == "jax"}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((32, 16)).astype("float32")
Y = RNG.standard_normal((32, 1)).astype("float32")
IDS = RNG.integers(0, 11, (32, 9)).astype("int32")
IMAGES = RNG.standard_normal((8, 8, 8, 3)).astype("float32")


def mlp():
    x = inputs = keras.Input((16,))
    for _ in range(6):
        x = L.Dense(32, "gelu")(x)
        x = L.BatchNormalization()(x)
        x = L.Dropout(0.2)(x)
    return keras.Model(inputs, L.Dense(1)(x))


def masked_lstms():
    x = inputs = keras.Input((9,), dtype="int32")
    x = L.Embedding(11, 8, mask_zero=True)(x)
    for _ in range(2):
        x = L.LSTM(8, return_sequences=True)(x)
        x = L.Dense(8, "tanh")(x)
    return keras.Model(inputs, L.Dense(1)(L.LSTM(8)(x)))


class AddsLoss(L.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.sum(x**2))
        return x


class Counts(L.Layer):
    """Keeps a metric and a counter, which one step may change once."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mean = keras.metrics.Mean(name="seen")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.mean.update_state(keras.ops.mean(x))
        self.calls.assign_add(1.0)
        return x


class Centers(L.Layer):
    """Takes off a mean of what it has seen, which it keeps first."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, x):
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return x - self.mean


def with_assigned_values():
    x = inputs = keras.Input((16,))
    for _ in range(3):
        # It divides the kernel of the layer inside in each call, before that runs.
        x = L.SpectralNormalization(L.Dense(16, "tanh"))(x)
        x = Centers()(x)
    return keras.Model(inputs, L.Dense(1)(x))


def with_losses():
    x = inputs = keras.Input((16,))
    for _ in range(4):
        x = L.Dense(16, "tanh", activity_regularizer="l2", kernel_regularizer="l1")(x)
        x = AddsLoss()(x)
    return keras.Model(inputs, L.Dense(1)(x))


def with_counters():
    x = inputs = keras.Input((16,))
    for _ in range(4):
        x = Counts()(L.Dense(16, "tanh")(x))
    return keras.Model(inputs, L.Dense(1)(x))


def with_model_inside():
    inner = keras.Sequential([keras.Input((16,)), L.Dense(16, "tanh"), L.Dropout(0.3)])
    x = inputs = keras.Input((16,))
    for _ in range(3):
        x = L.Dense(16, "tanh")(inner(x))
    return keras.Model(inputs, L.Dense(1)(x))


def convolutions():
    x = inputs = keras.Input((8, 8, 3))
    for _ in range(4):
        x = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(epsilon=0.1)(x))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


def attention():
    x = inputs = keras.Input((6, 8))
    for _ in range(3):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(2, 4, dropout=0.1)(y, y, use_causal_mask=True)])
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))


def masks_read_by_later_sections():
    ids = keras.Input((9,), dtype="int32")
    x = memory = L.Embedding(11, 8, mask_zero=True)(ids)
    for _ in range(3):
        x = L.LayerNormalization()(L.Dense(8, "tanh")(x))
        x = L.Add()([x, L.MultiHeadAttention(2, 4)(x, memory)])
    return keras.Model(ids, L.Dense(1)(L.LSTM(8)(x)))


SEQUENCES = RNG.standard_normal((8, 6, 8)).astype("float32")
CASES = {
    "dropout and batch norm": (mlp, X, Y, 3),
    "embedding, masks, LSTM": (masked_lstms, IDS, Y, 2),
    "masks of an earlier section": (masks_read_by_later_sections, IDS, Y, 4),
    "added losses": (with_losses, X, Y, 3),
    "metrics and counters": (with_counters, X, Y, 2),
    "weights and states assigned": (with_assigned_values, X, Y, 2),
    "a model inside": (with_model_inside, X, Y, 2),
    "convolutions": (convolutions, IMAGES, Y[:8], 4),
    "attention": (attention, SEQUENCES, Y[:8], 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_trains_as_the_plain_one(case):
    build, x, y, layers = CASES[case]
    # Adam divides by gradients near zero, where kernels that XLA fuses otherwise differ most.
    assert_trains_as_plain(build, x, y, every(layers), optimizer="sgd", **JIT)


# Without added losses: Keras 3.15 tells by ids which layer added one, and eagerly takes one for
# another at times.
STATEFUL = "metrics and counters", "weights and states assigned", "a model inside"


@pytest.mark.parametrize("case", STATEFUL)
def test_a_model_trains_as_the_plain_one_without_jit(case):
    build, x, y, layers = CASES[case]
    assert_trains_as_plain(build, x, y, every(layers), optimizer="sgd", run_eagerly=True)


def test_with_adam():
    assert_trains_as_plain(mlp, X, Y, every(3), tolerance=2e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_scales_the_loss_as_the_plain_model_does(policy):
    def build():
        keras.config.set_dtype_policy(policy)
        try:
            return mlp()
        finally:
            keras.config.set_dtype_policy("float32")

    assert_trains_as_plain(build, X, Y, every(3), optimizer="sgd", tolerance=2e-3)
    model = kr.checkpointed(build(), every=3)
    model.compile("sgd", "mse")
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == (policy == "mixed_float16")


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_head_without_a_loss_stays_as_it_is():
    def build():
        x = inputs = keras.Input((16,))
        for _ in range(4):
            x = L.Dense(16, "tanh")(x)
        return keras.Model(inputs, [L.Dense(1)(x), L.Dense(1, name="unused")(x)])

    losses = {"loss": ["mse", None], "optimizer": "sgd"}
    assert_trains_as_plain(build, X, [Y, Y], every(2), **losses)


def test_checkpoint_layers_and_names():
    def build(checkpoint=lambda x: x):
        x = inputs = keras.Input((16,))
        for number in range(4):
            x = checkpoint(L.Dense(16, "tanh", name=f"layer_{number}")(x))
        return keras.Model(inputs, L.Dense(1)(x))

    def marked():
        model = build(lambda x: kr.RecomputationCheckpoint()(x))  # noqa: PLW0108  # one for each
        return kr.Model(model.input, model.output)

    sections = ["section-0", "section-1", "section-2", "section-3", ""]
    assert [name for name, _ in marked().plan.named_steps] == sections
    wanted = trained(build, X, Y)[0]
    by_name = trained(
        build, X, Y, place=lambda model: kr.checkpointed(model, at=["layer_1", "layer_2"])
    )[0]
    for found in (trained(marked, X, Y)[0], by_name):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_model_of_a_class_of_its_own_stays_of_it():
    class Twice(keras.Model):
        def train_step(self, *args, **kwargs):
            return super().train_step(*args, **kwargs)

        def doubled(self):
            return 2

    def build():
        plain = mlp()
        return Twice(plain.input, plain.output)

    assert_trains_as_plain(build, X, Y, every(3), optimizer="sgd")
    model = kr.checkpointed(build(), every=3)
    assert isinstance(model, Twice)
    assert isinstance(model, kr.Model)
    assert model.doubled() == 2


def test_a_saved_model_loads_and_goes_on(tmp_path):
    keras.utils.set_random_seed(3)
    plain = with_losses()
    model = kr.checkpointed(plain, every=3)
    model.compile("adam", "mse")
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras", {"AddsLoss": AddsLoss})
    assert [name for name, _ in loaded.plan.named_steps] == [
        name for name, _ in model.plan.named_steps
    ]
    losses = [float(each.train_on_batch(X, Y)) for each in (model, loaded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    other = with_losses()
    other.load_weights(tmp_path / "model.weights.h5")  # by the plain model's order


def test_inference_is_the_plain_models():
    plain = mlp()
    model = kr.checkpointed(plain, every=3)
    outputs = [keras.ops.convert_to_numpy(each(X)) for each in (model, plain)]
    np.testing.assert_array_equal(*outputs)
    model.compile("sgd", "mse")
    plain.compile("sgd", "mse")
    assert model.evaluate(X, Y, verbose=0) == plain.evaluate(X, Y, verbose=0)


def test_a_checkpoint_that_saves_nothing_is_said():
    x = inputs = keras.Input((16,))
    x = kr.RecomputationCheckpoint()(x)
    with pytest.warns(kr.errors.RecomputeWarning, match="none of the 1 RecomputationCheckpoint"):
        kr.Model(inputs, L.Dense(1)(x))
    plain = keras.Model(inputs, L.Dense(1)(kr.RecomputationCheckpoint()(L.Dense(4)(inputs))))
    plain.compile("sgd", "mse")
    with pytest.warns(kr.errors.RecomputeWarning, match="works only in the graph of layers"):
        plain.train_on_batch(X, Y)


def test_tensorflow_is_not_loaded():
    with warnings.catch_warnings():
        warnings.simplefilter("error", kr.errors.RecomputeWarning)
        model = kr.checkpointed(mlp(), every=3)
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
    assert "tensorflow" not in sys.modules


def test_copies_and_new_heads_keep_the_checkpoints():
    ours = kr.checkpointed(mlp(), every=2)
    assert len(ours.plan.checkpoints) > 1
    assert not any(isinstance(layer, kr.RecomputationCheckpoint) for layer in ours.layers)
    copies = kr.Model.from_config(ours.get_config()), keras.models.clone_model(ours)
    for copy in copies:
        assert not set(map(id, copy.variables)) & set(map(id, ours.variables))
    for copy in (*copies, kr.Model(ours.input, L.Dense(1)(ours.output))):
        assert len(copy.plan.checkpoints) == len(ours.plan.checkpoints)
        assert sum(section.recomputed for section in copy.plan.steps) > 1
