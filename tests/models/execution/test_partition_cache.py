"""Sections that are alike share one trace: the values, gradients and statistics of each are its
own, and so are its names.

Looks at what is traced: a trace too many shows in neither values nor the compiled program, only in
time.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from keras_recompute.models.execution import executor as execution
from tests.oracle import assert_all_close, loss_and_gradients

LAYERS = keras.layers


def blocks(count=6, width=8, dropout=0.5):
    """Blocks that draw random numbers and keep statistics, so that they cannot become one loop."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((width,))
    for number in range(count):
        x = LAYERS.Dense(width, activation="tanh", name=f"dense_{number}")(x)
        x = LAYERS.BatchNormalization(name=f"norm_{number}")(x)
        x = LAYERS.Dropout(dropout, name=f"drop_{number}")(x)
    return keras.Model(inputs, LAYERS.Dense(2, name="head")(x))


@pytest.fixture
def traced(monkeypatch):
    """The numbers of calls of the sections that were traced."""
    found = []
    plain = execution._partition
    monkeypatch.setattr(
        execution,
        "_partition",
        lambda step, *rest: found.append(len(step.calls)) or plain(step, *rest),
    )
    return found


def results(model, state, *, jit):
    """Return loss, gradients and all variables after one step from ``state``."""
    for variable, value in zip(model.variables, state):
        variable.assign(value)
    x = np.random.default_rng(0).normal(size=(16, model.inputs[0].shape[-1]))
    mode = "jit" if jit else "graph"
    found = loss_and_gradients(model, x.astype(np.float32), mode=mode)
    return [*found, *(v.numpy() for v in model.variables)]


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.long)])
def test_values_gradients_and_statistics_are_those_of_the_plain_model(traced, jit):
    """Five sections of a dense layer, normalisation, dropout and a checkpoint are one trace, what
    is behind them another.
    """
    model = blocks()
    rng = np.random.default_rng(1)
    state = [
        v.numpy() + (0.1 * rng.normal(size=v.shape) if "seed" not in v.path else 0)
        for v in model.variables
    ]
    state = [
        np.abs(s) if v.path.endswith("variance") else s for v, s in zip(model.variables, state)
    ]
    ours = kr.checkpointed(model, at=[f"drop_{number}" for number in range(5)])
    found, wanted = results(ours, state, jit=jit), results(model, state, jit=jit)
    assert len(traced) == 2
    assert_all_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_the_program_names_the_layers_of_each_section():
    model = blocks(4)
    ours = kr.checkpointed(model, at=["drop_0", "drop_1", "drop_2"])
    ours.compile("sgd", "mse")
    record = profile(ours, tf.TensorSpec((512, 8)), tf.TensorSpec((512, 2)))
    numbers = {
        section: {
            buffer.layer.rpartition("_")[2]
            for buffer in record.buffers
            if buffer.section == section and buffer.layer
        }
        for section in ("section-0", "section-1", "section-2")
    }
    assert numbers == {"section-0": {"0"}, "section-1": {"1"}, "section-2": {"2"}}


@pytest.mark.long
def test_a_layer_that_holds_something_else_is_not_alike(traced):
    model = blocks()
    model.get_layer("drop_3").rate = 0.25
    ours = kr.checkpointed(model, at=[f"drop_{number}" for number in range(5)])
    results(ours, [v.numpy() for v in model.variables], jit=False)
    assert len(traced) == 3


def test_sections_that_are_wired_otherwise_are_not_alike(traced):
    """Both split a value in three; what the one concatenates first, the other does last."""
    x = inputs = keras.Input((12,))
    for section in range(3):
        a, b, c = keras.ops.split(x, 3, axis=-1)
        d = LAYERS.Dense(4, activation="tanh")(a)
        e = LAYERS.Dense(4, activation="tanh")(d)
        x = LAYERS.Concatenate(name=f"end_{section}")([e, b, c] if section % 2 else [c, b, e])
        x = LAYERS.Dense(12, activation="tanh", name=f"mixed_{section}")(x)
    model = keras.Model(inputs, LAYERS.Dense(2)(x))
    ours = kr.checkpointed(model, at=["mixed_0", "mixed_1", "mixed_2"])
    state = [v.numpy() for v in model.variables]
    assert_all_close(
        results(ours, state, jit=False), results(model, state, jit=False), rtol=1e-5, atol=1e-5
    )
    assert len(traced) == 3


def stacked(count=6, width=4):
    """Blocks that can become loops, and another layer before the first of them."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((width,), batch_size=16)
    x = LAYERS.Dense(width, name="first")(inputs)
    for number in range(count):
        y = LAYERS.LayerNormalization(name=f"norm_{number}")(x)
        x = LAYERS.Add(name=f"add_{number}")(
            [x, LAYERS.Dense(width, activation="tanh", name=f"dense_{number}")(y)]
        )
    return keras.Model(inputs, LAYERS.Dense(2, name="head")(x))


def in_loops(model):
    """Return ``model`` in three sections of two blocks, which are a loop in each."""
    ours = kr.checkpointed(model, at=["add_1", "add_3"])
    ours.scan_layers = True
    assert [step.recomputed for step in ours.plan.steps if step.inner_steps] == [True, True, False]
    return ours


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.long)])
def test_loops_in_several_sections_share_the_trace_of_a_block(traced, jit):
    """The first and the last of three sections have one more layer each, so that there are three
    loops over blocks of three layers.
    """
    model = stacked()
    state = [
        v.numpy() + 0.1 * np.random.default_rng(1).normal(size=v.shape) for v in model.variables
    ]
    found, wanted = results(in_loops(model), state, jit=jit), results(model, state, jit=jit)
    assert traced == [7, 3, 6, 7]  # each section, and a block within the first
    assert_all_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_loops_over_blocks_that_hold_something_else_do_not_share_it(traced):
    model = stacked()
    for number in (4, 5):
        model.get_layer(f"norm_{number}").epsilon = 0.1
    state = [v.numpy() for v in model.variables]
    found, wanted = results(in_loops(model), state, jit=False), results(model, state, jit=False)
    assert traced.count(3) == 2
    assert_all_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_the_program_names_the_layers_of_each_loop():
    ours = in_loops(stacked(width=64))
    ours.compile("sgd", "mse")
    record = profile(ours, tf.TensorSpec((16, 64)), tf.TensorSpec((16, 2)))
    layers = {buffer.layer for buffer in record.buffers if buffer.layer}
    # One block of each loop stands for all of it.
    assert {"dense_0", "dense_2", "dense_4"} <= layers, layers
