"""What ``plan`` refuses, and what it says of it: models, budgets and devices."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, UnsupportedError
from keras_recompute.liveness.local_device import machine_bytes
from keras_recompute.models.plans.memory_plan import plan as plan_and_prove
from keras_recompute.planning import BudgetTooSmallError

from .test_memory_plan import BATCH, LAYERS, WIDE, Block, dense, plan


@pytest.mark.parametrize(
    ("model", "options", "error", "says"),
    [
        (dense, {}, InvalidArgumentError, "batch_size is None, and the memory depends on it"),
        (dense, {"batch_size": 0}, InvalidArgumentError, "batch_size is 0"),
        (dense, {"batch_size": 4, "memory_budget": "8MB"}, InvalidArgumentError, "not '8MB'"),
        (
            lambda: keras.layers.Dense(3),
            {"batch_size": 4},
            InvalidArgumentError,
            "is not a Keras model",
        ),
        (
            lambda: kr.checkpointed(dense(), every=2),
            {"batch_size": 4},
            InvalidArgumentError,
            "has checkpoints already",
        ),
    ],
)
def test_what_cannot_be_planned_is_told(model, options, error, says):
    with pytest.raises(error, match=says):
        plan(model(), **{"memory_budget": 2**20, **options})


def test_what_this_machine_has_is_a_budget():
    _, found = plan_and_prove(dense(), memory_budget="device", device="local", batch_size=BATCH)
    assert found.budget_bytes == machine_bytes()
    _, told = plan_and_prove(dense(), memory_budget="1GiB", batch_size=BATCH)
    batch = 4 * BATCH * WIDE
    # Gaps between buffers take up to a page more.
    assert (
        told.compiled_peak_bytes + batch
        <= found.compiled_peak_bytes
        <= told.compiled_peak_bytes + batch + 4096
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"memory_budget": "device"}, 'give device=, such as "h100"'),
        ({"memory_budget": "device", "device": "h10"}, "did you mean 'h100'"),
        ({"memory_budget": 1, "device": "h100", "prove": False}, "leave out prove=False"),
        (
            {"memory_budget": 1, "device": "h100", "needed_bytes": lambda _: 0},
            "leave out prove=False and needed_bytes=",
        ),
    ],
)
def test_a_device_that_cannot_be_meant_is_told(options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        plan_and_prove(dense(), batch_size=BATCH, **options)


def test_a_refusal_names_the_layer_whose_blocks_can_be_recomputed():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, LAYERS.Dense(1)(Block(8, name="encoder")(inputs)))
    with pytest.raises(
        BudgetTooSmallError,
        match=r"inside 'encoder', a Block.*checkpointed\(model, layers=\.\.\.\)",
    ):
        plan(model, memory_budget=1, batch_size=BATCH)
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan(dense(), memory_budget=1, batch_size=BATCH)
    assert "inside" not in str(refusal.value)


class Doubling(LAYERS.Layer):
    """A loop of its own, in which TensorFlow keeps lists of what its gradient reads."""

    def call(self, x):
        return tf.while_loop(
            lambda n, _: n < tf.shape(x)[1], lambda n, y: (n + 1, tf.sin(2 * y)), (0, x)
        )[1]


def test_a_layer_of_unknown_needs_is_told():
    inputs = keras.Input((16,), batch_size=2)
    model = keras.Model(inputs, Doubling(name="doubling")(LAYERS.Dense(16)(inputs)))
    with pytest.raises(UnsupportedError, match=r"'doubling' keeps .* known only at run time"):
        plan(model, memory_budget="1GiB")
