"""Multi-head attention on JAX against Keras's: results, every gradient, and memory."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.layers import attention as attention_layer
from keras_recompute.layers.jax_attention import attention
from keras_recompute.liveness.device_compilers import find_device
from keras_recompute.liveness.jax_functions import trace_function

BATCH, TIME, KEYS, FEATURES = 2, 5, 7, 6


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def by_formula(query, key, value, mask, scale, is_causal):
    """Attention as Vaswani et al. 2017, section 3.2.1, have it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -1e37)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def with_gradients(function, arrays):
    def loss(*arrays):
        out = function(*arrays)
        return (out * jnp.sin(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays))


def assert_near(found, wanted, tolerance=1e-6):
    for ours, plain in zip(found, wanted, strict=True):
        scale = max(1.0, float(np.abs(plain).max()))
        np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance * scale)


# Of 3 heads and queries of 4 bytes for each key: tiles of 1 query, of 3, of a head, of a sample.
@pytest.mark.parametrize("tile_bytes", [1, 3 * 4 * KEYS, 5 * 4 * KEYS, 15 * 4 * KEYS, 2**22])
@pytest.mark.parametrize(
    "mask_shape", [None, (1, 1, TIME, KEYS), (BATCH, 1, 1, KEYS), (BATCH, 3, TIME, KEYS)], ids=str
)
def test_any_mask_and_tiles_give_the_formula(mask_shape, tile_bytes):
    arrays = (
        numbers(BATCH, TIME, 3, 4),
        numbers(BATCH, KEYS, 3, 4, seed=1),
        numbers(BATCH, KEYS, 3, 2, seed=2),
    )
    mask = None
    if mask_shape is not None:
        mask = numbers(*mask_shape, seed=3) > 0
        mask[0, 0, 0] = False  # a query that sees no key

    def ours(query, key, value):
        return attention(query, key, value, mask, scale=0.4, tile_bytes=tile_bytes)

    def plain(query, key, value):
        return by_formula(query, key, value, mask, 0.4, is_causal=False)

    assert_near(with_gradients(ours, arrays), with_gradients(plain, arrays))


@pytest.mark.parametrize("length", [5, 131])
def test_causal_attention_gives_the_formula(length):
    arrays = [numbers(BATCH, length, 2, 4, seed=seed) for seed in range(3)]

    def ours(query, key, value):
        options = {"scale": 0.4, "is_causal": True, "tile_bytes": 2**14}
        return attention(query, key, value, None, **options)

    def plain(query, key, value):
        return by_formula(query, key, value, None, 0.4, is_causal=True)

    assert_near(with_gradients(ours, arrays), with_gradients(plain, arrays))


def pair(**arguments):
    """Return our layer and Keras's with the same weights."""
    layers = []
    for home in (kr, keras.layers):
        layer = home.MultiHeadAttention(3, 4, **arguments)
        layer.build((BATCH, TIME, FEATURES), (BATCH, TIME, FEATURES))
        for number, variable in enumerate(layer.trainable_variables):
            variable.assign(numbers(*variable.shape, seed=number) / 2)
        layers.append(layer)
    return layers


def results(layer, **options):
    """Return results and gradients of weights and inputs."""
    state = [v.value for v in layer.non_trainable_variables]

    def loss(weights, x):
        found, _ = layer.stateless_call(weights, state, x, x, **options)
        leaves = jax.tree.leaves(found)
        return sum(jnp.sin(each).sum() for each in leaves), leaves

    weights = [v.value for v in layer.trainable_variables]
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    return jax.tree.leaves(gradient(weights, numbers(BATCH, TIME, FEATURES)))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, {}),
        ({"use_bias": False}, {"use_causal_mask": True}),
        ({}, {"attention_mask": np.tri(TIME, dtype=bool)[::-1][None]}),
        ({"sliding_window": 2}, {"use_causal_mask": True}),
        ({"dropout": 0.5, "seed": 3}, {"training": True}),
        ({"dropout": 0.5, "seed": 3}, {"training": False}),
        ({}, {"return_attention_scores": True, "use_causal_mask": True}),
    ],
    ids=str,
)
def test_the_layer_is_that_of_keras(arguments, options):
    ours, plain = pair(**arguments)
    assert_near(results(ours, **options), results(plain, **options))


def test_masks_of_the_inputs():
    x = numbers(BATCH, TIME, FEATURES)
    mask = np.arange(TIME) < np.array([[2], [5]])
    ours, plain = pair()
    assert_near([ours(x, x, query_mask=mask)], [plain(x, x, query_mask=mask)])
    y = numbers(BATCH, KEYS, FEATURES, seed=5)
    assert_near([ours(x, y)], [plain(x, y)])


def test_second_derivatives():
    def second(layer):
        first = jax.grad(lambda x: jnp.sin(layer(x, x)).sum())
        return jax.jit(jax.grad(lambda x: (first(x) ** 2).sum()))

    ours, plain = (second(layer)(numbers(BATCH, TIME, FEATURES)) for layer in pair())
    assert_near([ours], [plain], tolerance=1e-5)


def test_half_precision_is_near_the_exact_result():
    ours, plain = pair(dtype="mixed_bfloat16")[0], pair()[1]
    x = numbers(BATCH, TIME, FEATURES)
    assert ours(x, x).dtype == jnp.bfloat16
    assert_near([ours(x, x).astype("float32")], [plain(x, x)], 5e-2)


def test_the_kernel_of_gpus_is_keras_s(monkeypatch):
    monkeypatch.setattr(attention_layer, "has_flash", lambda _: True)
    ours, plain = pair()
    x = numbers(BATCH, TIME, FEATURES)
    assert_near([ours(x, x)], [plain(x, x)])
    assert "custom_vjp" not in str(jax.make_jaxpr(lambda x: ours(x, x))(x))


@pytest.mark.parametrize(("name", "has_flash"), [("h100", True), ("t4", False), ("v5e", False)])
@pytest.mark.parametrize("home", [kr, keras.layers])
def test_a_described_gpu_has_flash_attention_from_ampere_on(home, name, has_flash):
    inputs = keras.Input((128, 32))
    layer = home.MultiHeadAttention(2, 64, dtype="mixed_bfloat16")
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("adam", "mse")
    batch = numbers(1, 128, 32)
    options = {"input_feed": None, "layers_of": None, "target": find_device(name)}
    traced = trace_function(model, (batch, batch), {}, **options)
    assert ("__cudnn$fmha" in traced.lowered.as_text()) == has_flash


@pytest.mark.parametrize(("times", "has_flash"), [(128, True), (127, False)])
def test_a_recomputed_layer_takes_flash_attention_where_that_has_a_gradient(times, has_flash):
    inputs = keras.Input((times, 32))
    layer = keras.layers.MultiHeadAttention(2, 64, dtype="mixed_bfloat16", name="attention")
    plain = keras.Model(inputs, layer(inputs, inputs))
    batch = numbers(1, times, 32)
    for model in plain, kr.checkpointed(plain, layers="attention"):
        model.compile("adam", "mse")
        options = {"input_feed": None, "layers_of": None, "target": find_device("h100")}
        traced = trace_function(model, (batch, batch), {}, **options)
        assert ("__cudnn$fmha" in traced.lowered.as_text()) == has_flash


def test_it_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((TIME, FEATURES))
    model = keras.Model(inputs, kr.MultiHeadAttention(3, 4)(inputs, inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is kr.MultiHeadAttention
    x = numbers(BATCH, TIME, FEATURES)
    np.testing.assert_array_equal(loaded(x), model(x))


def test_probabilities_are_neither_whole_nor_kept():
    """All are 2 x 4 x 512 x 512 x 4 = 8 MiB, of which Keras's step has more than one array."""
    x, y = numbers(2, 512, 32), numbers(2, 512, 1)
    found = []
    for home in (kr, keras.layers):
        inputs = keras.Input((512, 32))
        made = home.MultiHeadAttention(4, 8)(inputs, inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(made))
        model.compile("adam", "mse")
        found.append(kr.liveness.profile(model, x, y).allocated_temporary_bytes)
    ours, plain = found
    # A tile has 4 MiB of probabilities and as much of their gradients, scores and exponents apart.
    assert ours < 20 * 2**20 < plain, f"{ours} bytes, and {plain} of Keras's layer"
