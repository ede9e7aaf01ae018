"""``Model.scan_layers``: sections of twin layers as one loop, with the gradients of the plain
model.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.liveness import profile
from tests.oracle import (
    assert_all_close,
    gradient_step,
    loss_and_gradients,
    loss_step,
    losses_of_fit,
    sum_of_sines,
)

X = np.random.default_rng(0).standard_normal((2, 5, 4)).astype("float32")
JIT = pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)


def block(x):
    y = keras.layers.LayerNormalization()(x)
    y = kr.MultiHeadAttention(2, 3)(y, y)
    x = keras.layers.Add()([x, y])
    return keras.layers.Dense(4, activation="gelu")(x)


def build(blocks=5, one_block=block, scan=True, kind=kr.Model):
    x = inputs = keras.Input(X.shape[1:], batch_size=len(X))
    for number in range(blocks):
        x = one_block(x)
        if number < blocks - 1:
            x = kr.RecomputationCheckpoint()(x)
    return made(kind, inputs, x, scan)


def made(kind, inputs, outputs, scan):
    """Return the model, with the same weights whatever its kind."""
    model = kind(inputs, outputs)
    random = np.random.default_rng(1)
    model.set_weights([0.5 * random.standard_normal(w.shape) for w in model.get_weights()])
    if kind is kr.Model:
        model.scan_layers = scan
    return model


def names(model):
    return [name for name, _ in model.plan.named_steps]


def results(model, *, jit=False):
    mode = "jit" if jit else "graph"
    return loss_and_gradients(model, X, mode=mode, of_inputs=True, loss=sum_of_sines)


def assert_equal_to_plain(model, plain, jit):
    assert_all_close(results(model, jit=jit), results(plain), rtol=1e-4, atol=1e-4)


@JIT
@pytest.mark.parametrize("levels", [1, pytest.param(2, marks=pytest.mark.long)])
def test_twins_become_one_loop_with_the_gradients_of_the_plain_model(jit, levels):
    model = build()
    model.recomputation_levels = levels
    assert names(model) == ["sections-0-3", ""]
    assert_equal_to_plain(model, build(kind=keras.Model), jit)


@pytest.mark.long
@JIT
def test_in_mixed_precision_the_first_section_takes_another_type_than_the_others(jit):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, plain = build(), build(kind=keras.Model)
        found, expected = (results(each, jit=jit) for each in (model, plain))
    finally:
        keras.config.set_dtype_policy(before)
    # One gradient, of the bias of the keys, is zero but for rounding.
    for n, (a, b) in enumerate(
        zip(*([tf.cast(t, tf.float32) for t in ts] for ts in (found, expected)), strict=True)
    ):
        np.testing.assert_allclose(
            a, b, rtol=0, atol=0.01 + 0.08 * np.abs(b).max(), err_msg=f"result {n}"
        )


@pytest.mark.long
def test_eager_and_higher_derivatives():
    def derivatives(model):
        first = loss_step(model, of_inputs=True, loss=sum_of_sines)
        slope = gradient_step(lambda x: first(x)[1], of_inputs=True)
        return first(tf.constant(X)), slope(tf.constant(X))

    found, expected = (derivatives(each) for each in (build(3), build(3, kind=keras.Model)))
    assert_all_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert_all_close(found[1], expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_a_loop_trains_as_the_plain_model_does():
    options = {"optimizer": keras.optimizers.Adam, "learning_rate": 0.01, "epochs": 3}
    losses = [
        losses_of_fit(model, X, np.ones_like(X), mode="jit", **options)
        for model in (build(3), build(3, kind=keras.Model))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_layers_that_all_sections_share_and_layers_used_twice():
    shared = keras.layers.Dense(4, activation="tanh")

    def one_block(x):
        own = keras.layers.Dense(4, use_bias=False)
        return keras.layers.Add()([own(shared(own(x))), x])

    def both():
        model = build(4, one_block)
        plain = keras.Model(model.inputs, model.outputs)
        return model, plain

    model, plain = both()
    assert names(model) == ["sections-0-2", ""]
    assert_equal_to_plain(model, plain, jit=False)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=1)],
        lambda: [keras.layers.BatchNormalization()],
        lambda: [keras.layers.Dense(4), keras.layers.Lambda(lambda t: 2 * t)],
        lambda: [keras.layers.Dense(4, activity_regularizer="l2")],
        lambda: [keras.layers.Dense(4, trainable=False)],
        lambda: [keras.Sequential([keras.layers.Dense(4)])],
    ],
    ids=["random numbers", "statistics", "function", "losses", "frozen", "model"],
)
def test_what_one_layer_cannot_stand_for_stays_apart(layers):
    def one_block(x):
        for layer in layers():
            x = layer(x)
        return x

    assert names(build(4, one_block)) == ["section-0", "section-1", "section-2", ""]


def test_layers_of_other_sizes_or_functions_stay_apart():
    sizes = iter([3, 3, 5, 5, 5, 1])
    model = build(6, lambda x: keras.layers.Dense(4)(keras.layers.Dense(next(sizes))(x)))
    assert names(model) == ["sections-0-1", "sections-2-4", ""]
    functions = iter(["relu", "tanh", "tanh"])
    model = build(3, lambda x: keras.layers.Dense(4)(keras.layers.Dense(4, next(functions))(x)))
    assert names(model) == ["section-0", "section-1", ""]


def test_without_it_nothing_changes():
    assert names(build(3, scan=False)) == ["section-0", "section-1", ""]


@pytest.mark.long
def test_the_program_does_not_grow_with_the_number_of_sections():
    def instructions(blocks, scan):
        model = build(
            blocks,
            lambda x: keras.layers.Dense(4, activation="gelu")(
                keras.layers.LayerNormalization()(x)
            ),
            scan=scan,
        )
        step = loss_step(model, of_inputs=True, loss=sum_of_sines)
        return len(profile(step, tf.constant(X)).steps)

    grows, stays = ([instructions(blocks, scan) for blocks in (3, 6)] for scan in (False, True))
    assert stays[1] - stays[0] < (grows[1] - grows[0]) / 4


def test_it_is_kept_by_saving_loading_and_cloning(tmp_path):
    model = build(3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for other in (loaded, keras.models.clone_model(model)):
        assert other.scan_layers
        assert names(other) == names(model)


def test_a_wrong_value_is_said():
    with pytest.raises(InvalidArgumentError, match="scan_layers is 1: give True or False"):
        build(3).scan_layers = 1


def test_the_constructor_takes_the_options():
    built = build(3)
    model = kr.Model(built.inputs, built.outputs, scan_layers=True, recomputation_levels=2)
    assert (model.scan_layers, model.recomputation_levels) == (True, 2)
    with pytest.raises(InvalidArgumentError, match="scan_layers is 1: give True or False"):
        kr.Model(built.inputs, built.outputs, scan_layers=1)


def test_blocks_of_which_one_has_lora_are_no_loop_any_more():
    blocks = [keras.layers.Dense(4, activation="tanh") for _ in range(4)]
    inputs = x = keras.Input((4,))
    for block in blocks:
        x = kr.RecomputationCheckpoint()(block(x))
    model = kr.Model(inputs, keras.layers.Dense(1)(x))
    model.scan_layers = True
    data = np.ones((2, 4), np.float32)
    before = model(data, training=True)
    blocks[1].enable_lora(2)
    blocks[1].lora_kernel_b.assign(np.ones_like(blocks[1].lora_kernel_b))
    after = model(data, training=True)
    np.testing.assert_allclose(after, model(data, training=False), rtol=1e-5)
    assert np.abs(np.subtract(after, before)).max() > 1e-3
