"""Into which stages the passes of XLA on a CPU divide a backward program, and what is between."""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_recompute.engine.partition.stages import Barrier
from tests.oracle import numbers

from ..engine_vs_plain import parted

WIDTH = 8
W = [tf.Variable(numbers(WIDTH, WIDTH, seed=i) * 0.3) for i in range(3)]


def chain(activation):
    def run(x):
        for w in W:
            x = activation(x @ w)
        return x

    return run


def square(y):
    """Its gradient reads y and the result, which follows from y by arithmetic."""
    return tf.nn.relu(y * y)


def largest(x):
    """Its gradient finds by equality which element was the largest, and reads two more arrays."""
    y = tf.nn.relu(x @ W[0] + 1.0)
    return tf.reduce_max(y * y @ W[1], axis=1)


@pytest.mark.parametrize(
    ("function", "barriers"),
    [
        (lambda x: x @ W[0], [Barrier.NONE]),
        (lambda x: tf.nn.relu(x @ W[0]), [Barrier.SECTION_FENCE, Barrier.NONE]),
        (chain(square), [Barrier.SECTION_FENCE, Barrier.COPIED_RESULTS, Barrier.NONE]),
        (chain(tf.nn.gelu), [Barrier.COPIED_RESULTS, Barrier.COPIED_INPUTS, Barrier.NONE]),
        (largest, [Barrier.BRANCH, Barrier.NONE]),
    ],
    ids=["one", "prologue", "replay", "operands", "branch"],
)
def test_the_stages_of_a_backward_program(function, barriers):
    found = []

    @tf.function(jit_compile=True, autograph=False)
    def looking(x):
        found.append(parted(function, [x], kept_by_caller=(0,)).stages)
        return x

    looking.get_concrete_function(tf.TensorSpec((4, WIDTH)))
    assert [stage.barrier for stage in found[0]] == barriers
