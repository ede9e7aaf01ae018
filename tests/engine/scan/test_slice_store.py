"""Pieces of a tensor, written and read one at a time, under XLA and outside."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.graph.target_ops import dynamic_slice
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.scan.slice_store import SliceStore, dimensions, pad_into
from tests.oracle import numbers

JIT = pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
WHOLE = numbers(2, 6, 5)


@JIT
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_pieces_written_backwards_come_out_in_their_places(axis, jit):
    count = 3 if axis == 1 else 2 if axis == 0 else 5 if axis == 2 else 4
    shape = [2, 6, 5]
    if axis is not None:
        shape[axis] //= count
    all_pieces = [numbers(*shape, seed=s) for s in range(count)]
    pieces = SliceStore(count, tuple(shape), tf.float32, axis)

    @tf.function(jit_compile=jit, autograph=False)
    def run(stacked):
        def body(s, store):
            return s - 1, pieces.put(store, s, stacked[s])

        _, store = tf.while_loop(
            lambda s, _: s >= 0,
            body,
            (count - 1, pieces.empty(target_now())),
            maximum_iterations=count,
        )
        whole = pieces.whole(store)
        return whole, pieces.get(store, 1), pieces.slice(whole, tf.constant(1))

    whole, second, second_of_whole = run(tf.constant(np.stack(all_pieces)))
    expected = np.stack(all_pieces) if axis is None else np.concatenate(all_pieces, axis)
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(second, all_pieces[1])
    np.testing.assert_array_equal(second_of_whole, all_pieces[1])


@JIT
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_a_whole_tensor_is_read_piece_by_piece(axis, jit):
    """``full`` and ``whole`` are each other's inverse, and a piece is overwritten without touching
    the others.
    """
    count, shape = {None: (2, (6, 5)), 0: (2, (1, 6, 5)), 1: (3, (2, 2, 5)), 2: (5, (2, 6, 1))}[
        axis
    ]
    pieces = SliceStore(count, shape, tf.float32, axis)

    @tf.function(jit_compile=jit, autograph=False)
    def run(whole):
        store = pieces.full(whole, target_now())
        return (
            pieces.get(store, 1),
            pieces.whole(pieces.full(whole, target_now())),
            pieces.slice(whole, 0),
        )

    second, again, first = run(tf.constant(WHOLE))
    expected = WHOLE if axis is None else np.split(WHOLE, count, axis)
    np.testing.assert_array_equal(first, expected[0])
    np.testing.assert_array_equal(second, expected[1])
    np.testing.assert_array_equal(again, WHOLE)


@JIT
def test_a_batch_that_is_not_known_while_tracing(jit):
    @tf.function(input_signature=[tf.TensorSpec((None, 6, 5))], jit_compile=jit, autograph=False)
    def run(whole):
        pieces = SliceStore(3, (dimensions(whole)[0], 2, 5), tf.float32, 1)
        store = pieces.empty(target_now())
        for s in range(3):
            store = pieces.put(store, s, pieces.slice(whole, 2 - s))
        return pieces.whole(store)

    for batch in (1, 2):
        expected = np.concatenate(np.split(WHOLE[:batch], 3, axis=1)[::-1], axis=1)
        np.testing.assert_array_equal(run(tf.constant(WHOLE[:batch])), expected)


@pytest.mark.parametrize(("axis", "start", "length"), [(0, 1, 1), (1, 0, 6), (1, 2, 3), (2, 4, 1)])
def test_embed_puts_a_part_where_take_found_it(axis, start, length):
    whole = tf.constant(WHOLE)
    part = dynamic_slice(whole, axis, start, length)
    back = pad_into(part, whole, axis, start).numpy()
    mask = np.zeros_like(WHOLE)
    index = [slice(None)] * 3
    index[axis] = slice(start, start + length)
    mask[tuple(index)] = 1
    np.testing.assert_array_equal(back, WHOLE * mask)


def test_embedding_the_whole_costs_nothing():
    whole = tf.constant(WHOLE)
    assert pad_into(whole, whole, 1, 0) is whole


def test_dimensions_are_numbers_where_they_are_known():
    @tf.function(input_signature=[tf.TensorSpec((None, 6))])
    def run(x):
        first, second = dimensions(x)
        assert isinstance(first, tf.Tensor)
        assert second == 6
        return first

    assert run(tf.zeros((4, 6))) == 4
    assert dimensions(tf.zeros((4, 6))) == (4, 6)


@JIT
def test_who_will_run_the_graph_is_known_also_inside_loops_and_branches(jit):
    seen = []

    @tf.function(jit_compile=jit, autograph=False)
    def run(x):
        seen.append(target_now().is_xla)

        def body(i, y):
            seen.append(target_now().is_xla)
            return i + 1, tf.cond(
                y[0] > 0, lambda: (seen.append(target_now().is_xla), y)[1], lambda: y * 2
            )

        return tf.while_loop(lambda i, _: i < 2, body, (0, x))

    run(tf.ones(2))
    assert seen
    assert set(seen) == {jit}
