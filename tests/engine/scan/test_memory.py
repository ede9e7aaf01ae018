"""The saving is real in the compiled program: what the engine does not save is not there, and work
is not merged back.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_recompute.engine.policies import save_everything, save_nothing
from keras_recompute.engine.scan.section_scan import Carry, FinalOutput, Scanned
from keras_recompute.liveness import Program, profile
from tests.oracle import numbers

from ..engine_vs_plain import through_engine
from .test_section_scan import Case, scanned

BATCH, SIZE, WIDTH = 8, 32, 2048
ACTIVATION = BATCH * WIDTH * 4  # bytes of one wide activation: 64 KiB
DEPTH = 6
W = [tf.Variable(numbers(SIZE, WIDTH, seed=i) * 0.1) for i in range(DEPTH)]
V = [tf.Variable(numbers(WIDTH, SIZE, seed=i) * 0.1) for i in range(DEPTH)]


def wide(i: int):
    """A section that is narrow at its ends and keeps two wide activations in between: the sine's
    argument and the sine.
    """
    return lambda x: tf.matmul(tf.sin(tf.matmul(x, W[i])), V[i])


def training_step(policy):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for i in range(DEPTH):
                section = wide(i) if policy is None else through_engine(wide(i), policy)
                y = tf.nest.flatten(section(y))[0]
            loss = tf.reduce_sum(y**2)
        return tape.gradient(
            loss, x
        )  # the gradients of the weights would be larger than all activations

    return step


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    policies = {"plain": None, "save_everything": save_everything, "save_nothing": save_nothing}
    return {
        name: profile(training_step(policy), tf.TensorSpec((BATCH, SIZE)))
        for name, policy in policies.items()
    }


def activations(program: Program) -> float:
    """Return the temporary memory of the program at its peak, in wide activations."""
    return program.not_always_live_peak_bytes / ACTIVATION


@pytest.mark.long
def test_the_plain_gradient_keeps_what_every_section_needs(programs):
    # one wide value per section, the product: without that there would be nothing to save
    assert activations(programs["plain"]) >= DEPTH


def test_replay_is_not_merged_with_the_forward_pass(programs):
    # One section at a time: its product and the gradient of it. The states in between are a 64th of
    # an activation each.
    assert activations(programs["save_nothing"]) < 2.2


def test_saving_everything_saves_no_memory(programs):
    assert activations(programs["save_everything"]) >= DEPTH


def test_sections_in_a_loop_need_the_memory_of_one():
    """Four times as many sections: more boundary states, and no more of anything else."""

    def section(h, x):
        return tf.matmul(tf.sin(tf.matmul(h + tf.reduce_sum(x, axis=1), W[0])), V[0])

    def peak(count: int) -> int:
        case = Case(section, [], [Carry(0), Scanned(axis=1, start=0, length=1)], [FinalOutput(0)])

        def step(h, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(scanned(case, count)(h, x)[0] ** 2)
            return tape.gradient(loss, [W[0], V[0]])

        specs = tf.TensorSpec((BATCH, SIZE)), tf.TensorSpec((BATCH, count, SIZE))
        return profile(step, *specs, input_feed=["h", "x"]).not_always_live_peak_bytes

    few, many = peak(4), peak(16)
    boundary = BATCH * SIZE * 4
    assert many - few <= 12 * boundary + 1024, (
        f"12 states of {boundary} bytes explain less than {many - few} bytes"
    )
