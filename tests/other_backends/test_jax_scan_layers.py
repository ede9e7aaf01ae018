"""Equal sections as one ``jax.lax.scan``: the same training, in a program that hardly grows."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax_loops import loops_in, step_of, types_in_loops, weights_of
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6, 8)).astype("float32")
Y = RNG.normal(size=(4, 6, 1)).astype("float32")
DEPTH = 5


def stacked(block, depth=DEPTH):
    """Return a function that builds a model of blocks."""

    def build():
        x = inputs = keras.Input((6, 8))
        for number in range(depth):
            x = block(x, number)
        return keras.Model(inputs, L.Dense(1)(x))

    return build


def dense(x, _):
    return L.Dense(8, "gelu")(L.Dense(8, "relu")(x))


def residual(x, number):
    """Random numbers, statistics, and an added loss of each block."""
    h = L.Dropout(0.3, seed=number)(L.Dense(8, "relu")(x))
    h = L.Dense(8, activity_regularizer="l2")(L.BatchNormalization()(h))
    return L.Add()([x, h])


def attention(x, number):
    h = L.MultiHeadAttention(2, 4, dropout=0.1, seed=number)(*[L.LayerNormalization()(x)] * 2)
    x = L.Add()([x, h])
    return L.Add()([x, L.Dense(8)(L.Dense(16, "gelu")(x))])


@contextmanager
def dtype_policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def looped(every):
    def place(model):
        model = kr.checkpointed(model, every=every)
        model.scan_layers = True
        return model

    return place


# The number of layers in a block, and of sections in the loop. Forward and backward pass have a
# loop each. The last block is none of the sections where no layer but one comes behind it.
BLOCKS = {"dense": (dense, 2, 5), "residual": (residual, 5, 4), "attention": (attention, 6, 4)}


@pytest.mark.parametrize("name", BLOCKS)
def test_training_is_the_plain_model_s(name):
    block, layers, length = BLOCKS[name]
    build = stacked(block)
    model = looped(layers)(build())
    assert set(loops_in(model, X)) == {length}
    assert_trains_as_plain(build, X, Y, looped(layers), optimizer="sgd", tolerance=2e-6)


@pytest.mark.exhaustive
def test_without_jit():
    build = stacked(residual, 3)
    assert_trains_as_plain(build, X, Y, looped(5), optimizer="sgd", run_eagerly=True)


def test_the_program_does_not_grow_with_depth():
    def products(depth):
        model = looped(2)(stacked(dense, depth)())
        return step_of(model, X).lower(weights_of(model)).compile().as_text().count(" dot(")

    assert products(4) == products(8)


def test_memory_is_that_of_recomputation():
    x = np.ones((64, 6, 8), "float32")

    def temporaries(model):
        compiled = step_of(model, x).lower(weights_of(model)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    build = stacked(dense, 12)
    assert temporaries(looped(2)(build())) < 0.6 * temporaries(build())


def test_weights_are_stacked_in_the_type_that_layers_read():
    """Under mixed precision: a copy of half the bytes, and their gradients as well."""
    gradients, stacks = [], []
    for dtype in ("mixed_bfloat16", "float32"):
        with dtype_policy(dtype):
            keras.utils.set_random_seed(0)
            plain = stacked(dense)()
            model = looped(2)(plain)
        stacks.append(types_in_loops(model, X, (8, 8)))
        gradients.append([step_of(each, X)(weights_of(each)) for each in (plain, model)])
    assert stacks == [{"bfloat16"}, {"float32"}]
    for ours, expected in zip(*gradients[0]):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, expected, rtol=0.02, atol=1e-3)


def test_weights_that_are_read_twice_keep_their_type():
    """Each read has a gradient in bfloat16, and their sum is one in float32."""

    class Twice(L.Dense):
        def call(self, x):
            return super().call(super().call(x))

    with dtype_policy("mixed_bfloat16"):
        model = looped(2)(stacked(lambda x, _: L.Dense(8)(Twice(8)(x)))())
    assert types_in_loops(model, X, (8, 8)) == {"bfloat16", "float32"}


def test_activations_that_share_a_name_are_told_apart():
    def scaled(k):
        def activation(x):
            return jnp.tanh(k * x)

        return activation

    def block(x, number):
        return L.Dense(8, activation=scaled(1.0 + number))(x)

    build = stacked(block)
    with pytest.warns(RecomputeWarning, match="makes no loop of"):
        assert_trains_as_plain(build, X, Y, looped(1), optimizer="sgd")


def test_derivatives_that_differ_are_told_apart():
    def with_slope(slope):
        @jax.custom_jvp
        def activation(x):
            return jnp.tanh(x)

        activation.defjvp(lambda p, t: (jnp.tanh(p[0]), slope * t[0]))
        return activation

    def block(x, number):
        return L.Dense(8, activation=with_slope(1.0 + number // 2))(x)

    build = stacked(block, 6)
    model = looped(1)(build())
    assert loops_in(model, X) == [2] * len(loops_in(model, X)) != []
    assert_trains_as_plain(build, X, Y, looped(1), optimizer="sgd")


class SharedDropout(L.Layer):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def call(self, x, training=None):
        return keras.random.dropout(x, 0.5, seed=self.generator) if training else x


def test_a_generator_that_sections_share_draws_in_order():
    def build():
        generator = keras.random.SeedGenerator(7)
        x = inputs = keras.Input((6, 8))
        for _ in range(3):
            x = SharedDropout(generator)(L.Dense(8, "relu")(x))
        return keras.Model(inputs, L.Dense(1)(x))

    with pytest.warns(RecomputeWarning, match="makes no loop of"):
        assert_trains_as_plain(build, X, Y, looped(2), optimizer="sgd")


def test_values_that_skip_sections():
    def build():
        x = inputs = keras.Input((6, 8))
        kept = []
        for _ in range(4):
            x = L.Add()([L.Dense(8, "relu")(x), inputs])
            kept.append(x)
        return keras.Model(inputs, L.Dense(1)(L.Concatenate()(kept)))

    model = looped(2)(build())
    assert set(loops_in(model, X)) <= {3, 4} != set()
    assert_trains_as_plain(build, X, Y, looped(2), optimizer="sgd")


def test_masks_are_kept_and_make_no_loop():
    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(5, 8, mask_zero=True)(inputs)
        for _ in range(3):
            x = L.LSTM(8, return_sequences=True)(x)
        return keras.Model(inputs, L.Dense(1)(x))

    ids = RNG.integers(0, 5, size=(4, 6))
    with pytest.warns(RecomputeWarning, match="no masks between them"):
        assert_trains_as_plain(build, ids, Y, looped(1), optimizer="sgd")


def without_checkpoints(plain):
    model = kr.Model(plain.input, plain.output)
    model.scan_layers = True
    return model


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_a_loop_without_checkpoints_too(name):
    build = stacked(BLOCKS[name][0])
    model = without_checkpoints(build())
    assert set(loops_in(model, X)) == {DEPTH}
    assert not model.recomputes
    # XLA of JAX 0.11 and later rounds otherwise.
    tolerance = 2e-6 if jax.__version_info__ < (0, 11) else 4e-6
    assert_trains_as_plain(build, X, Y, without_checkpoints, optimizer="sgd", tolerance=tolerance)


def test_without_checkpoints_nothing_is_computed_twice():
    build = stacked(dense, 12)

    def products(model):
        text = str(jax.make_jaxpr(step_of(model, X))(weights_of(model)))
        return text.count("dot_general")

    # 25 layers: a product forwards and two backwards, one for the first layer. In the loop are two
    # layers, and the first one's input has no gradient that is asked for.
    assert products(build()) == 3 * 25 - 1
    assert products(without_checkpoints(build())) == 3 * 3


def test_where_nothing_repeats_itself_it_says_so():
    inputs = keras.Input((6, 8))
    model = kr.Model(inputs, L.Dense(1)(L.LayerNormalization()(L.Dense(4)(inputs))))
    with pytest.warns(RecomputeWarning, match="scan_layers has no effect on"):
        model.scan_layers = True


def test_it_is_saved(tmp_path):
    model = looped(2)(stacked(dense)())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.scan_layers
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)
