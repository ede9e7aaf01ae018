"""States between sections: what enters and leaves each, and how many are stored."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.passes import target_now
from keras_recompute.engine.scan.carry_store import CarryStore
from keras_recompute.engine.scan.section_scan import Carry, FinalOutput
from keras_recompute.liveness import profile
from tests.oracle import gradient_step, numbers

from .test_section_scan import Case, scanned

BATCH, SIZE = 8, 64


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_section_is_entered_and_left_by_its_own_state(count, jit):
    states = np.arange(count + 1, dtype=np.float32)[:, None] * np.ones((1, SIZE), np.float32)
    boundaries = CarryStore(count, (SIZE,), tf.float32)

    @tf.function(jit_compile=jit, autograph=False)
    def run(states):
        def body(s, store):
            return s + 1, boundaries.put(store, s, states[s])

        _, store = tf.while_loop(
            lambda s, _: s < count,
            body,
            (0, boundaries.empty(target_now())),
            maximum_iterations=count,
        )
        sections = [tf.constant(s) for s in reversed(range(count))]
        carry_in = [boundaries.carry_in(store, s, states[0]) for s in sections]
        return carry_in, [boundaries.carry_out(store, s, states[count]) for s in sections]

    carry_in, carry_out = run(tf.constant(states))
    np.testing.assert_array_equal(carry_in, states[:-1][::-1])
    np.testing.assert_array_equal(carry_out, states[1:][::-1])


@pytest.mark.parametrize("count", [3, 6])
def test_a_compiled_loop_stores_one_state_per_boundary(count):
    """Neither the argument of the first section nor the result of the last one is stored again."""
    weight = tf.Variable(numbers(SIZE, SIZE, seed=1) * 0.1)
    run = scanned(
        Case(lambda h: tf.tanh(tf.matmul(h, weight)), [], [Carry(0)], [FinalOutput(0)]), count
    )

    step = gradient_step(lambda h: run(h)[0], weights=[weight])
    program = profile(step, tf.TensorSpec((BATCH, SIZE)), input_feed=["x"])
    # The backward pass has one more buffer of the kind, in which it reads a state.
    stored = [
        b.size_bytes for b in program.buffers if b.category == "checkpoint" and b.phase == "forward"
    ]
    assert sum(stored) == (count - 1) * BATCH * SIZE * 4  # float32
