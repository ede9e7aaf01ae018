"""A selection is repeated inside the loop that reads it, so that nothing is selected or stacked
whole in front of the loop.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.graph.target_ops import slice_in_loop
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.scan.section_scan import Carry, FinalOutput, Scanned, StackedOutput
from keras_recompute.liveness import profile
from tests.oracle import numbers

from ..engine_vs_plain import assert_same, differentiate
from ..scan.test_section_scan import Case, scanned

MICROBATCHES, BATCH, STEPS, SIZE = 4, 2, 1024, 8
MICROBATCH = BATCH * STEPS * SIZE * 4  # bytes: 64 KiB


def in_a_loop(value):
    """Return the sum of ``value``, taken in each of three turns of a loop, and the operations of
    the loop's body.
    """
    body_operations = []

    def body(i, total):
        total = total + slice_in_loop(value, 0, 0, value.shape[0], target_now())
        body_operations.extend(op.type for op in total.graph.get_operations())
        return i + 1, total

    _, total = tf.while_loop(
        lambda i, _: i < 3, body, (0, tf.zeros_like(value)), maximum_iterations=3
    )
    return total, body_operations


@pytest.mark.parametrize(
    ("select", "kinds"),
    [
        (lambda x, m: x[m], {"StridedSlice"}),
        (lambda x, m: tf.identity(x[m]), {"StridedSlice"}),
        (tf.gather, {"GatherV2"}),
        (lambda x, m: tf.squeeze(tf.slice(x, [m, 0, 0], [1, -1, -1]), 0), {"Slice", "Squeeze"}),
    ],
    ids=["index", "index and copy", "gather", "slice"],
)
def test_a_selection_is_repeated_in_the_body(select, kinds):
    x = numbers(3, 4, 5)

    @tf.function(autograph=False)
    def run(x, m):
        total, operations = in_a_loop(select(x, m))
        assert kinds <= set(operations), f"the body has {sorted(set(operations))}"
        return total

    np.testing.assert_allclose(run(tf.constant(x), tf.constant(2)), 3 * x[2], rtol=1e-6)


@pytest.mark.parametrize(
    "compute",
    [lambda x: x * 2.0, tf.identity, lambda x: tf.sin(x)[0:1], lambda x: x],
    ids=["product", "copy", "of a sine", "itself"],
)
def test_what_is_computed_is_not_computed_again(compute):
    """Selections alone move. A sine below a selection stays where it is."""
    x = numbers(1, 4)

    @tf.function(autograph=False)
    def run(x):
        total, operations = in_a_loop(compute(x))
        assert not {"Mul", "Sin"} & set(operations)
        return total

    np.testing.assert_allclose(run(tf.constant(x)), 3 * compute(tf.constant(x)), rtol=1e-6)


def test_outside_a_loop_and_for_eager_values_nothing_happens():
    eager = tf.constant([1.0, 2.0])[0:1]

    @tf.function(autograph=False)
    def run(x):
        return slice_in_loop(eager, 0, 0, 1, target_now()), slice_in_loop(
            x[0:1], 0, 0, 1, target_now()
        )

    assert [float(t[0]) for t in run(tf.constant([3.0, 4.0]))] == [1.0, 3.0]
    operations = run.get_concrete_function(tf.TensorSpec([2])).graph.get_operations()
    assert [op.type for op in operations].count("StridedSlice") == 1


def test_no_microbatch_is_copied_whole():
    """A loop over sections reads pieces of ``feed[m]``: the compiled program holds no copy of
    ``feed[m]``.
    """
    case = Case(
        lambda h, x: (tf.tanh(h + tf.reduce_sum(x, axis=1)), h),
        [],
        [Carry(0), Scanned(1, 0, 64)],
        [StackedOutput(1, None)],
    )
    w = tf.Variable(numbers(BATCH, SIZE))

    def train(feed):
        def microbatch(m, total):
            with tf.GradientTape() as tape:
                (states,) = scanned(case, STEPS // 64)(tf.identity(w), feed[m])
                loss = tf.reduce_sum(states**2)
            return m + 1, total + tape.gradient(loss, w)

        return tf.while_loop(
            lambda m, _: m < MICROBATCHES,
            microbatch,
            (0, tf.zeros_like(w)),
            maximum_iterations=MICROBATCHES,
        )[1]

    program = profile(train, tf.TensorSpec((MICROBATCHES, BATCH, STEPS, SIZE)), input_feed=["feed"])
    assert program.input_feed_bytes == MICROBATCHES * MICROBATCH
    assert program.not_always_live_peak_bytes < MICROBATCH / 2, [
        (b.name, b.size_bytes) for b in program.buffers if b.size_bytes >= MICROBATCH / 4
    ]


WIDTH, LAYERS = 128, 8
MATRIX = WIDTH * WIDTH * 4  # bytes: 64 KiB


def layers_in_a_loop(h, *matrices):
    """The state through a layer per section, each with a matrix of its own: handed to the loop as a
    stack.
    """
    case = Case(
        lambda h, w: tf.tanh(tf.matmul(h, w[0])), [], [Carry(0), Scanned(0, 0, 1)], [FinalOutput(0)]
    )
    return scanned(case, LAYERS)(h, tf.stack(matrices))[0]


def layers_one_by_one(h, *matrices):
    for w in matrices:
        h = tf.tanh(tf.matmul(h, w))
    return h


def test_each_turn_takes_its_own_of_what_was_stacked():
    arguments = [
        numbers(BATCH, WIDTH),
        *(numbers(WIDTH, WIDTH, seed=n) / WIDTH for n in range(LAYERS)),
    ]
    plain = differentiate(layers_one_by_one, arguments)
    for jit in (False, True):
        assert_same(differentiate(layers_in_a_loop, arguments, jit=jit), plain, relative=5e-6)


def test_no_stack_is_made_of_what_a_loop_takes_one_by_one():
    """A turn holds one matrix; beside it there are the states of all sections, 9 x 1 KiB, and what
    a turn computes.
    """
    signature = [tf.TensorSpec((BATCH, WIDTH)), *[tf.TensorSpec((WIDTH, WIDTH))] * LAYERS]
    program = profile(layers_in_a_loop, *signature)
    states = (LAYERS + 1) * BATCH * WIDTH * 4
    assert program.not_always_live_peak_bytes < MATRIX + 2 * states, [
        (b.name, b.size_bytes) for b in program.buffers
    ]
