"""Through the engine: the sequential part of a recurrence is not run again where its outputs are at
hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.capture.joint_graph import join
from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.emit.lowering import lower
from keras_recompute.engine.graph.op_sets import LOOPS
from keras_recompute.engine.partition.partition import partition
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_everything, save_nothing, save_replay_sources
from tests.oracle import assert_near, gradient_step

from .oracle import BATCH, CELL, FEATURES, TIME, UNITS, numbers, pair

X = numbers(BATCH, TIME, FEATURES)


def loops_replayed(cell: str, **options) -> int:
    ours, _ = pair(cell, return_sequences=True, return_state=True)
    part = partition(join(trace(ours, [tf.TensorSpec(X.shape)], target_now())), **options)
    return sum(op.type in LOOPS for op in part.replayed)


@CELL
def test_with_the_outputs_at_hand_no_product_is_sequential(cell):
    # an LSTM still scans its cell state, which has no product in it; a GRU scans nothing
    assert loops_replayed(cell, policy=save_replay_sources) == (1 if cell == "lstm" else 0)
    assert loops_replayed(cell, policy=save_nothing, kept_by_caller=[0]) == (
        1 if cell == "lstm" else 0
    )


@CELL
def test_without_the_outputs_the_recurrence_runs_again(cell):
    assert loops_replayed(cell, policy=save_nothing) == 1


@CELL
def test_what_is_saved_are_the_outputs(cell):
    ours, _ = pair(cell, return_sequences=True)
    part = partition(join(trace(ours, [tf.TensorSpec(X.shape)], target_now())), save_replay_sources)
    assert [tuple(t.shape) for t in part.saved] == [(BATCH, TIME, UNITS)]


@CELL
@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
@pytest.mark.parametrize(
    "policy",
    [pytest.param(save_nothing, marks=pytest.mark.long), save_replay_sources],
    ids=["run again", "from its outputs"],
)
def test_the_replayed_gradient_is_keras_s(cell, policy, jit):
    ours, plain = pair(cell, return_sequences=True)

    def replayed(x):
        part = partition(join(trace(ours, [tf.TensorSpec(x.shape)], target_now())), policy)
        (y,) = lower(part, [x], name="section-0")
        return y

    weights = [w.value for w in ours.trainable_weights]
    step = gradient_step(replayed, weights=weights, of_inputs=True)
    ours_gradients = tf.function(step, jit_compile=jit, autograph=False)
    x = tf.constant(X)
    expected = gradient_step(plain, of_inputs=True)(x)
    assert_near(ours_gradients(x), expected, 1e-5)


def test_a_dropout_mask_is_replayed_from_its_seed():
    ours, _ = pair("lstm", return_sequences=True, dropout=0.5)
    saved = []

    @tf.function(autograph=False)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joint = join(
                trace(lambda x: ours(x, training=True), [tf.TensorSpec(x.shape)], target_now())
            )
            part = partition(joint, save_nothing)
            (y,) = lower(part, [x], name="section-0")
        saved.extend(part.saved)
        return tape.gradient(y, x)

    gradient = run(tf.constant(X))
    # A feature that the mask hid has no gradient at any step; one it let pass has one at every
    # step.
    hidden = (gradient.numpy() == 0).all(axis=1)
    assert 0 < hidden.sum() < hidden.size
    assert ((gradient.numpy() == 0).any(axis=1) == hidden).all()
    assert sum(np.prod(t.shape, dtype=int) for t in saved) <= 8


def loops_forward(cell: str, policy) -> list[int]:
    """Return how many tensors each loop of the forward program carries."""
    ours, _ = pair(cell, return_sequences=True, return_state=True)
    part = partition(join(trace(ours, [tf.TensorSpec(X.shape)], target_now())), policy)
    return [len(op.outputs) for op in part.forward.operations if op.type in LOOPS]


@CELL
def test_gates_are_written_down_only_where_they_are_kept(cell):
    (without_gates,) = loops_forward(cell, save_replay_sources)
    # One loop: its outputs serve, and no second one makes them
    (with_gates,) = loops_forward(cell, save_everything)
    assert without_gates < with_gates


@pytest.mark.long
@CELL
@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_both_loops_have_the_same_outputs(cell, jit):
    ours, plain = pair(cell, return_sequences=True, return_state=True)
    trace_of = join(trace(ours, [tf.TensorSpec(X.shape)], target_now()))

    def outputs(policy):
        part = partition(trace_of, policy)
        return tf.function(
            lambda x: lower(part, [x], name="section-0"), jit_compile=jit, autograph=False
        )(X)

    for light, full, expected in zip(
        outputs(save_replay_sources), outputs(save_everything), plain(X), strict=True
    ):
        assert_near([light.numpy(), full.numpy()], [expected.numpy()] * 2, 2e-6)
