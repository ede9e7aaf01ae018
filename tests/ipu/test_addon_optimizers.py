"""Graphcore's optimisers against Keras's where they agree, and against published algorithms."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu.optimizers.adam import AdamIpuOptimizer
from keras_recompute.ipu.optimizers.lamb import LAMBIpuOptimizer
from keras_recompute.ipu.optimizers.sgd import SGDIpuOptimizer
from tests.oracle import assert_all_close

from .pipelines import numbers

STEPS = 5


def updated(optimizer, dtype="float32"):
    """Return two variables after steps with given gradients."""
    variables = [
        keras.Variable(numbers(4, 3, seed=1), dtype=dtype, name="kernel"),
        keras.Variable(np.zeros(3, dtype), name="bias"),
    ]
    for step in range(STEPS):
        optimizer.apply(
            [tf.constant(numbers(*v.shape, seed=10 + step), dtype) for v in variables], variables
        )
    return [v.numpy() for v in variables]


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (SGDIpuOptimizer(0.1), keras.optimizers.SGD(0.1)),
        (SGDIpuOptimizer(0.1, 0.9), keras.optimizers.SGD(0.1, 0.9)),
        (SGDIpuOptimizer(0.1, 0.9, True), keras.optimizers.SGD(0.1, 0.9, True)),
        (SGDIpuOptimizer(lr=0.1, clipnorm=0.5), keras.optimizers.SGD(0.1, clipnorm=0.5)),
        (
            SGDIpuOptimizer(0.1, decay=0.5),
            keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)),
        ),
        # Keras adds epsilon before the correction, so the two agree where it is nothing.
        (AdamIpuOptimizer(0.1, 0.8, 0.9, 1e-12), keras.optimizers.Adam(0.1, 0.8, 0.9, 1e-12)),
        (AdamIpuOptimizer(0.1, m_dtype=tf.float32, v_dtype="float32"), keras.optimizers.Adam(0.1)),
    ],
    ids=["sgd", "momentum", "nesterov", "lr and clipnorm", "decay", "adam", "types"],
)
def test_updates_are_those_of_keras(ours, plain):
    assert_all_close(updated(ours), updated(plain), rtol=2e-5, atol=1e-6)


def by_hand(*, rate=0.1, epsilon, debiasing=True, amsgrad=False, decay=0.0, adapts=None, clip=None):
    """Adam and, with ``adapts``, LAMB.

    ``adapts`` has two bools per variable: whether it has weight decay, and whether its step is
    scaled.
    """
    results = []
    for number, start in enumerate((numbers(4, 3, seed=1), np.zeros(3, "float32"))):
        w, m, v, largest = start.astype("float64"), 0.0, 0.0, 0.0
        for step in range(STEPS):
            g = numbers(*start.shape, seed=10 + step).astype("float64")
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            m_hat, v_hat = (
                (m / (1 - 0.9 ** (step + 1)), v / (1 - 0.999 ** (step + 1)))
                if debiasing
                else (m, v)
            )
            v_hat = largest = np.maximum(largest, v_hat) if amsgrad else v_hat
            update, ratio = m_hat / (np.sqrt(v_hat) + epsilon), 1.0
            if adapts:
                decays, scales = adapts[number]
                update = update + decay * w * decays
                norm = min(np.linalg.norm(w), clip or np.inf)
                ratio = norm / np.linalg.norm(update) if scales and norm > 0 else 1.0
            w = w - rate * ratio * update
        results.append(w)
    return results


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epsilon": 0.1}, {}),
        ({"epsilon": 0.1, "debiasing": False}, {"debiasing": False}),
        ({"epsilon": 0.1, "amsgrad": True}, {"amsgrad": True}),
    ],
    ids=str,
)
def test_adam_is_the_published_algorithm(options, expected):
    assert_all_close(
        updated(AdamIpuOptimizer(0.1, **options)),
        by_hand(epsilon=0.1, **expected),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"adapts": [(True, True)] * 2}),
        ({"weight_decay_rate": 0.2}, {"adapts": [(True, True)] * 2, "decay": 0.2}),
        (
            {
                "weight_decay_rate": 0.2,
                "exclude_from_weight_decay": ["kern"],
                "exclude_from_layer_adaptation": ["bias"],
            },
            {"adapts": [(False, True), (True, False)], "decay": 0.2},
        ),
        (
            {"weight_norm_clip": 0.5, "debiasing": False},
            {"adapts": [(True, True)] * 2, "clip": 0.5, "debiasing": False},
        ),
    ],
    ids=str,
)
def test_lamb_is_the_published_algorithm(options, expected):
    """The bias starts at zero, so that its first step is Adam's."""
    assert_all_close(
        updated(LAMBIpuOptimizer(0.1, **options)),
        by_hand(epsilon=1e-6, **expected),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("optimizer", "types"),
    [
        (
            AdamIpuOptimizer(m_dtype=tf.float16, v_dtype=tf.float32, amsgrad=True),
            {"m": "float16", "v": "float32", "vhat": "float16"},
        ),
        (
            LAMBIpuOptimizer(
                v_dtype="float32", optimizer_compute_precisions=(tf.float32, tf.float16)
            ),
            {"m": "float16", "v": "float32"},
        ),
        (SGDIpuOptimizer(momentum=0.9, momentum_accum_dtype=tf.float32), {"momentum": "float32"}),
    ],
    ids=["adam", "lamb", "sgd"],
)
def test_the_types_of_the_state(optimizer, types):
    """Of variables in half precision, whose type is taken where none is asked for."""
    after = updated(optimizer, "float16")
    assert all(a.dtype == "float16" and np.isfinite(a).all() for a in after)
    found = {
        v.name.rpartition("_")[2]: v.dtype
        for v in optimizer.variables
        if v.name.startswith("kernel")
    }
    assert found == types


@pytest.mark.parametrize("make", [AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer])
def test_configs_make_the_same_again(make):
    kept = (
        {"m_dtype": "float16"}
        if make is not SGDIpuOptimizer
        else {"momentum_accum_dtype": "float16"}
    )
    again = keras.optimizers.deserialize(
        keras.optimizers.serialize(make(0.25, name="mine", **kept))
    )
    assert type(again) is make
    assert again.name == "mine"
    assert float(again.learning_rate) == 0.25
    assert {name: getattr(again, name) for name in kept} == kept


def test_what_cannot_be():
    with pytest.raises(
        ValueError, match=r"decay=0.1\) cannot be combined with a schedule: leave decay out"
    ):
        AdamIpuOptimizer(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1), decay=0.1)
    with pytest.raises(ValueError, match="give two types, of the moments and of the step"):
        LAMBIpuOptimizer(optimizer_compute_precisions=(tf.float32,))


def test_a_compiled_model_trains():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(LAMBIpuOptimizer(0.1), "mse", jit_compile=True)
    losses = model.fit(numbers(32, 3), numbers(32, 1), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
