"""What a graph needs once is made once in it, and is worth what the operation it stands for would
be.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_recompute.engine.graph.graph_constants import (
    add,
    constant,
    equal_to,
    multiply,
    start_indices,
)


def positions(number):
    return [
        start_indices(1, add(multiply(number, 3), 2), 3),
        tf.cast(equal_to(number, 2), tf.int32),
        multiply(number, 1),
        add(number, 0),
    ]


def test_values():
    for made in (positions(tf.constant(2)), tf.function(positions)(tf.constant(2))):
        for value, expected in zip(made, ([0, 8, 0], 1, 2, 2)):
            np.testing.assert_array_equal(value, expected)


def test_numbers_stay_numbers():
    assert multiply(2, 3) == 6
    assert add(2, 3) == 5
    np.testing.assert_array_equal(start_indices(0, 4, 2), [4, 0])


def test_asked_for_again_it_is_the_same_tensor():
    with tf.Graph().as_default() as graph:
        number = tf.compat.v1.placeholder(tf.int32, ())
        first = positions(number)
        made = len(graph.get_operations())
        again = positions(number)
        casts = 1  # is what positions itself makes
    assert len(graph.get_operations()) == made + casts
    assert [a is b for a, b in zip(first, again)] == [True, False, True, True]


def test_what_is_of_another_type_or_another_number_is_another_tensor():
    with tf.Graph().as_default():
        a, b = tf.compat.v1.placeholder(tf.int32, ()), tf.compat.v1.placeholder(tf.int32, ())
        assert constant(1) is not constant(1, tf.int64)
        assert constant(1, tf.float32) is constant(1, tf.float32)
        assert multiply(a, 2) is not multiply(b, 2)
        assert multiply(a, 2) is not multiply(a, 3)


def test_each_graph_makes_its_own():
    """As the body of a loop does: what stands outside would become a variable of the loop."""

    @tf.function
    def run(n):
        before = multiply(n, 2)
        (after,) = tf.while_loop(
            lambda total: total < 20, lambda total: (total + multiply(n, 2),), (before,)
        )
        return after

    assert run(tf.constant(3)).numpy() == 24


def test_it_stands_outside_what_it_was_first_asked_for_in():
    """Under a control dependency it would wait, and everything else that reads it."""
    with tf.Graph().as_default():
        late = tf.compat.v1.placeholder(tf.float32, (), name="late")
        with tf.name_scope("section"), tf.control_dependencies([late]):
            made = constant((1, 2))
    assert not made.op.control_inputs
    assert not made.op.name.startswith("section")
