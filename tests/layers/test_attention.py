"""The fused attention: against its formula in NumPy and against Keras's layer with the same
weights, with every gradient.
"""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_recompute.layers.attention import MultiHeadAttention
from keras_recompute.layers.fused_attention import attention
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.liveness import profile
from keras_recompute.models.classes.model import Model
from tests.oracle import assert_all_close, gradient_step, in_mode, loss_and_gradients, sum_of_sines

from .oracle import numbers

JIT = pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
BATCH, QUERIES, KEYS, FEATURES, HEADS = 2, 7, 5, 6, 4
X, Y = numbers(BATCH, QUERIES, FEATURES), numbers(BATCH, KEYS, FEATURES, seed=1)


def by_formula(query, key, value, mask, d_out, scale):
    """Attention and its gradients of query, key and value, with all probabilities, in float64."""
    scores = scale * query @ np.swapaxes(key, -1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -1e300)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    d_weights = d_out @ np.swapaxes(value, -1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)) * scale
    if mask is not None:
        d_scores = np.where(mask, d_scores, 0)
    turned = np.swapaxes(d_scores, -1, -2)
    return weights @ value, d_scores @ key, turned @ query, np.swapaxes(weights, -1, -2) @ d_out


def run(query, key, value, mask, d_out, scale, tile_bytes, jit, is_causal=False):
    def both(query, key, value, d_out):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            out = attention(
                query, key, value, mask, scale=scale, tile_bytes=tile_bytes, is_causal=is_causal
            )
        return (out, *tape.gradient(out, [query, key, value], d_out))

    # The formula has the heads in front of the length.
    arguments = [tf.constant(np.swapaxes(a, 1, 2)) for a in (query, key, value, d_out)]
    mode = "eager" if jit is None else "jit" if jit else "graph"
    return [np.swapaxes(a, 1, 2) for a in in_mode(mode, both)(*arguments)]


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 5),
    masked=st.sampled_from([None, (2, 3), (3,), (1, 2, 3), (0, 1, 2, 3)]),
    tile_bytes=st.sampled_from([1, 100, 1000, 2**22]),
    jit=st.sampled_from([None, False]),
    seed=st.integers(0, 99),
)
def test_any_shape_mask_and_number_of_tiles_give_the_formula(sizes, masked, tile_bytes, jit, seed):
    batch, heads, queries, keys, size = sizes
    random = np.random.default_rng(seed)
    query = random.standard_normal((batch, heads, queries, size))
    key = random.standard_normal((batch, heads, keys, size))
    value = random.standard_normal((batch, heads, keys, 3))
    d_out = random.standard_normal((batch, heads, queries, 3))
    full = batch, heads, queries, keys
    mask = (
        None
        if masked is None
        else random.random([full[i] if i in masked else 1 for i in range(4)]) < 0.6
    )
    found = run(query, key, value, mask, d_out, 0.7, tile_bytes, jit)
    for name, a, b in zip(
        ("out", "query", "key", "value"), found, by_formula(query, key, value, mask, d_out, 0.7)
    ):
        np.testing.assert_allclose(a, b, atol=1e-12, err_msg=name)


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    length=st.sampled_from([1, 63, 64, 127, 128, 200, 256, 257, 330]),
    tile_bytes=st.sampled_from([2**12, 2**17, 2**22]),
    jit=st.sampled_from([None, False]),
    seed=st.integers(0, 99),
)
def test_causal_attention_of_any_length_is_that_with_a_mask(length, tile_bytes, jit, seed):
    # Spans of at least 64 queries, at most 4: 127 are one, 200 three of 67, 67 and 66, 330 four of
    # 83, 83, 83 and 81.
    random = np.random.default_rng(seed)
    query, key, value, d_out = (random.standard_normal((1, 2, length, 3)) for _ in range(4))
    found = run(query, key, value, None, d_out, 0.7, tile_bytes, jit, is_causal=True)
    wanted = by_formula(query, key, value, np.tril(np.ones((length, length), bool)), d_out, 0.7)
    for name, a, b in zip(("out", "query", "key", "value"), found, wanted):
        np.testing.assert_allclose(a, b, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    "tile_bytes",
    [2**15, pytest.param(2**22, marks=pytest.mark.long)],
    ids=["tiles of 16 queries", "one tile"],
)
@pytest.mark.parametrize("length", [pytest.param(256, marks=pytest.mark.long), 330])
def test_causal_attention_compiled(length, tile_bytes):
    random = np.random.default_rng(0)
    query, key, value, d_out = (random.standard_normal((1, 2, length, 3)) for _ in range(4))
    found = run(query, key, value, None, d_out, 0.7, tile_bytes, True, is_causal=True)
    wanted = by_formula(query, key, value, np.tril(np.ones((length, length), bool)), d_out, 0.7)
    for name, a, b in zip(("out", "query", "key", "value"), found, wanted):
        np.testing.assert_allclose(a, b, atol=1e-11, err_msg=name)


def elements_of(kind, *, is_causal, jit):
    """The elements that operations of one kind make where a layer attends to 256 places."""
    layer = MultiHeadAttention(HEADS, 3)
    layer.build((1, 256, FEATURES), (1, 256, FEATURES))

    @tf.function(autograph=False, jit_compile=jit)
    def attend(x):
        return layer(x, x, use_causal_mask=is_causal)

    graph = attend.get_concrete_function(tf.TensorSpec((1, 256, FEATURES))).graph
    return sum(
        op.outputs[0].shape.num_elements() for op in graph.get_operations() if op.type == kind
    )


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_causal_attention_leaves_out_what_no_query_sees(jit):
    assert elements_of("Exp", is_causal=False, jit=jit) == HEADS * 256 * 256
    # Four spans of 64 queries see 64, 128, 192 and 256 keys: 10 of 16 blocks of 64 x 64.
    assert elements_of("Exp", is_causal=True, jit=jit) == HEADS * 64 * (64 + 128 + 192 + 256)


def test_causal_attention_compiled_reads_a_mask_for_the_keys_of_a_span_alone():
    assert elements_of("SelectV2", is_causal=True, jit=True) == HEADS * 4 * 64 * 64


@pytest.mark.parametrize(
    "tile_bytes", [2 * 5 * 3 * 8, 2**22], ids=["tiles of 3 queries", "one tile"]
)
def test_compiled_with_a_mask_that_hides_all_keys_of_a_query(tile_bytes):
    random = np.random.default_rng(0)
    query, key, value, d_out = (random.standard_normal((2, 3, n, 4)) for n in (7, 5, 5, 7))
    mask = random.random((2, 1, 7, 5)) < 0.5
    mask[0, 0, 2] = False
    found = run(query, key, value, mask, d_out, 0.5, tile_bytes, True)
    assert_all_close(found, by_formula(query, key, value, mask, d_out, 0.5), atol=1e-12)


def pair(**arguments):
    """Our layer and Keras's with the same weights, none of them zero."""
    layers = [
        kind(HEADS, 3, **arguments)
        for kind in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    ]
    for layer in layers:
        layer.build(X.shape, X.shape)
    layers[1].set_weights(
        [numbers(*w.shape, seed=n) for n, w in enumerate(layers[1].get_weights())]
    )
    layers[0].set_weights(layers[1].get_weights())
    return layers


def outputs_and_gradients(layer, *inputs, jit=False, **options):
    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = layer(*inputs, **options)
            loss = tf.reduce_sum(tf.sin(tf.cast(out, tf.float32)))
        return [out, *tape.gradient(loss, [*inputs, *(v.value for v in layer.trainable_variables)])]

    return tf.function(both, jit_compile=jit, autograph=False)(*(tf.constant(i) for i in inputs))


def assert_same(ours, plain, tolerance=1e-5):
    assert len(ours) == len(plain)
    for n, (a, b) in enumerate(zip(ours, plain)):
        np.testing.assert_allclose(
            np.float32(a), np.float32(b), rtol=tolerance, atol=tolerance * 10, err_msg=f"result {n}"
        )


def of_itself(layer, *, jit=False, **options):
    class Same:
        trainable_variables = layer.trainable_variables

        def __call__(self, x, **options):
            return layer(x, x, **options)

    return outputs_and_gradients(Same(), X, jit=jit, **options)


@JIT
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_causal_mask": True},
        {"attention_mask": numbers(BATCH, QUERIES, QUERIES) > 0},
        {"attention_mask": numbers(BATCH, HEADS, QUERIES, QUERIES) > 0, "use_causal_mask": True},
    ],
    ids=["plain", "causal", "mask", "mask per head and causal"],
)
def test_self_attention_is_that_of_keras(jit, options):
    ours, plain = pair()
    assert_same(of_itself(ours, jit=jit, **options), of_itself(plain, **options))


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_bias": False},
        {"value_dim": 5},
        {"output_shape": 4},
        {"dropout": 0.0, "kernel_regularizer": "l2"},
    ],
    ids=str,
)
def test_arguments_of_the_layer(arguments):
    ours, plain = pair(**arguments)
    assert_same(of_itself(ours), of_itself(plain))


def test_a_sliding_window_of_causal_attention():
    if "sliding_window" not in inspect.signature(keras.layers.MultiHeadAttention).parameters:
        pytest.skip("this Keras has no sliding windows")
    ours, plain = pair(sliding_window=2)
    assert_same(*(of_itself(layer, use_causal_mask=True) for layer in (ours, plain)))


@JIT
def test_attention_to_another_sequence(jit):
    ours, plain = pair()
    assert_same(outputs_and_gradients(ours, X, Y, jit=jit), outputs_and_gradients(plain, X, Y))
    assert_same(
        outputs_and_gradients(ours, X, Y, Y[::-1], jit=jit),
        outputs_and_gradients(plain, X, Y, Y[::-1]),
    )


def test_keras_masks_of_the_inputs():
    ours, plain = pair()
    mask = tf.constant([[True] * QUERIES, [True] * 3 + [False] * (QUERIES - 3)])
    results = [
        of_itself(layer, query_mask=mask, value_mask=mask, key_mask=mask) for layer in (ours, plain)
    ]
    assert_same(*results)
    padded = tf.concat([X[:, :4], tf.zeros_like(X[:, 4:])], axis=1)
    models = [
        keras.Sequential(
            [keras.layers.Masking(), Again(layer), keras.layers.GlobalAveragePooling1D()]
        )
        for layer in (ours, plain)
    ]
    assert_same([models[0](padded)], [models[1](padded)])


class Again(keras.layers.Layer):
    """A layer of two inputs, given one twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.supports_masking = layer, True

    def call(self, inputs):
        return self.layer(inputs, inputs)


def test_what_needs_the_probabilities_is_left_to_keras():
    ours, plain = pair(dropout=0.5)
    assert_same(
        ours(X, X, return_attention_scores=True, training=False),
        plain(X, X, return_attention_scores=True, training=False),
    )
    assert_same([ours(X, X, training=False)], [plain(X, X, training=False)])
    dropped = [ours(X, X, training=True) for _ in range(2)]
    assert np.abs(dropped[0] - dropped[1]).max() > 0.01


def test_unknown_batch_and_unknown_length():
    ours, plain = pair()
    for shape in ((None, QUERIES, FEATURES), (None, None, FEATURES)):
        a, b = (
            tf.function(lambda x, f=f: f(x, x), input_signature=[tf.TensorSpec(shape)])(X)
            for f in (ours, plain)
        )
        assert_same([a], [b])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_as_near_the_exact_result_as_that_of_keras(policy):
    exact = of_itself(pair()[1])

    def error(found):
        return max(
            np.abs(np.float32(a) - np.float32(b)).max() / max(np.abs(b).max(), 1)
            for a, b in zip(found, exact)
        )

    ours, plain = (of_itself(layer) for layer in pair(dtype=policy))
    assert ours[0].dtype == plain[0].dtype
    assert error(ours) < 1.5 * error(plain)


@pytest.mark.long
@JIT
def test_second_derivatives(jit):
    ours, plain = pair()

    def curvature(layer):
        first = gradient_step(lambda x: layer(x, x), of_inputs=True, loss=sum_of_sines)
        mode = "jit" if jit else "graph"
        return loss_and_gradients(lambda x: first(x)[0], X, mode=mode, of_inputs=True)

    assert_same(curvature(ours), curvature(plain), 1e-4)


@JIT
def test_inside_recomputed_sections(jit):
    def model(kind, attention):
        x = inputs = keras.Input((QUERIES, FEATURES))
        for number in range(4):
            x = keras.layers.Add()([x, attention(HEADS, 3)(x, x)])
            if number in (0, 2):
                x = RecomputationCheckpoint()(x)
        return kind(inputs, x)

    plain = model(keras.Model, keras.layers.MultiHeadAttention)
    ours = model(Model, MultiHeadAttention)
    plain.set_weights([0.3 * numbers(*w.shape, seed=n) for n, w in enumerate(plain.get_weights())])
    ours.set_weights(plain.get_weights())
    assert_same(outputs_and_gradients(ours, X, jit=jit), outputs_and_gradients(plain, X), 1e-4)


def test_it_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((QUERIES, FEATURES))
    model = keras.Model(inputs, MultiHeadAttention(HEADS, 3, name="attention")(inputs, inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.get_layer("attention"), MultiHeadAttention)
    np.testing.assert_array_equal(loaded(X), model(X))


def test_probabilities_are_neither_whole_nor_kept():
    # All probabilities: 1 x 2 x 2048 x 2048 floats = 32 MiB, and Keras's layer keeps them. A turn
    # of ours has 4 MiB of them, in the backward pass twice and their gradient; besides them are
    # some arrays of 1 x 2048 x 16 floats = 128 KiB.
    x = tf.constant(numbers(1, 2048, 16))
    whole = 1 * 2 * 2048 * 2048 * 4

    def temporary_bytes(kind):
        layer = kind(2, 8)
        layer.build(x.shape, x.shape)

        step = gradient_step(lambda x: layer(x, x), of_inputs=True)
        return profile(step, x).allocated_temporary_bytes

    assert temporary_bytes(keras.layers.MultiHeadAttention) > whole
    assert temporary_bytes(MultiHeadAttention) < 0.6 * whole
