"""Models that train other models: with checkpoints they train as without, and take less memory."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from tests.oracle import COMPILE_OPTIONS

from ..trainers import ALL, FEATURES

X = np.random.default_rng(0).normal(size=(4, FEATURES)).astype(np.float32)
BATCH = tf.TensorSpec((2048, FEATURES))


def long(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.long)


def quick_first(quick):
    every = [(name, mode) for name in ALL for mode in COMPILE_OPTIONS]
    return [case if case in quick else long(*case) for case in every]


def plain(model):
    return model


def with_checkpoints(model):
    return kr.checkpointed(model, every=2)


def trained(name, change, mode):
    """Return the losses of five updates with Adam, and the weights after them."""
    model = ALL[name](change)
    model.compile(keras.optimizers.Adam(0.01), **COMPILE_OPTIONS[mode])
    losses = [model.fit(X, verbose=0).history["objective"][0] for _ in range(5)]
    networks = [layer for layer in model.layers if layer.weights]
    return losses, [weight for layer in networks for weight in layer.get_weights()]


@functools.cache
def trained_plainly(name, mode):
    return trained(name, plain, mode)


@pytest.mark.parametrize(("name", "mode"), quick_first({("SimSiam", "eager"), ("Frozen", "graph")}))
def test_it_trains_as_the_plain_one(name, mode):
    losses, weights = trained(name, with_checkpoints, mode)
    # XLA draws other numbers.
    expected_losses, expected_weights = trained_plainly(name, "jit" if mode == "jit" else "eager")
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4, atol=1e-6)
    assert losses[-1] != losses[0]
    assert len(weights) == len(expected_weights) > 0
    for weight, expected in zip(weights, expected_weights, strict=True):
        # Adam divides small gradients by themselves, and with them their rounding.
        np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=2e-4)


def temporaries(name, change):
    model = ALL[name](change)
    model.compile("adam", jit_compile=True)
    return profile(model, BATCH).allocated_temporary_bytes


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_it_takes_less_memory(name):
    """A layer of 2048 rows of 8 floats is 64 KiB, and gelu keeps one or two of these."""
    assert temporaries(name, with_checkpoints) < 0.75 * temporaries(name, plain)
