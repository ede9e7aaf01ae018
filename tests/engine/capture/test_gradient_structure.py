"""Gradients have the structure of the plain program's: None stays None, and sparse gradients stay
sparse.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.policies import save_everything, save_matmuls, save_nothing
from keras_recompute.engine.scan.section_scan import (
    Carry,
    Constant,
    FinalOutput,
    StackedOutput,
    scan_sections,
)
from tests.oracle import MODES, gradient_step, in_mode, numbers

from ..engine_vs_plain import parted

# Not every policy finds something to save in every function here.
pytestmark = pytest.mark.filterwarnings("ignore::keras_recompute.errors.RecomputeWarning")

POLICIES = {"nothing": save_nothing, "everything": save_everything, "matmuls": save_matmuls}

SOME_POLICIES = [
    pytest.param(name, marks=() if name == "nothing" else pytest.mark.long) for name in POLICIES
]

X = tf.constant(numbers(3, 4, seed=1))
TRUNK = tf.Variable(numbers(4, 4, seed=2), name="trunk")
HEADS = [tf.Variable(numbers(4, 2, seed=3 + n), name=f"head_{n}") for n in range(3)]
TABLE = tf.Variable(numbers(6, 4, seed=7), name="table")
IDS = tf.constant([[1, 2, 1], [5, 1, 2]])


def three_heads(x):
    """Three results of one trunk. The slope of the last one is infinite everywhere."""
    hidden = tf.tanh(x @ TRUNK)
    first, second, third = (hidden @ head for head in HEADS)
    return first, tf.sin(second), tf.math.log(third * 0.0)


def looked_up(ids):
    return tf.tanh(tf.gather(TABLE, ids) @ TRUNK)


def tied(ids):
    """A table that is read by its rows, and as a whole."""
    return tf.tanh(tf.gather(TABLE, ids)) @ tf.transpose(TABLE)


def looked_up_twice(ids):
    return tf.gather(TABLE, ids) * tf.gather(TABLE, ids + 0) + tf.gather(TABLE, ids[:, ::-1])


def looked_up_by_what_is_computed(x):
    """Rows that are found by a product, as the codes of a quantized autoencoder are."""
    ids = tf.argmax(tf.sin(x @ TRUNK), axis=1)
    return tf.gather(TABLE, ids) * 2.0


def gradients_of(function, mode, *inputs, **options):
    return in_mode(mode, gradient_step(function, **options))(*inputs)


def assert_same_structure(ours, plain, *, relative=1e-6):
    """Assert that gradients are None, sparse or dense alike, and have the same numbers."""
    assert len(ours) == len(plain)
    for number, (a, b) in enumerate(zip(ours, plain, strict=True)):
        kinds = [type(g).__name__ for g in (a, b)]
        is_sparse = [isinstance(g, tf.IndexedSlices) for g in (a, b)]
        assert (a is None) == (b is None), (
            f"gradient {number} is a {kinds[0]}, plainly a {kinds[1]}"
        )
        assert is_sparse[0] == is_sparse[1], (
            f"gradient {number} is a {kinds[0]}, plainly a {kinds[1]}"
        )
        if a is None:
            continue
        if is_sparse[0]:
            assert a.values.shape == b.values.shape, "other slices than the plain gradient has"
            assert_same_slices(a, b, relative)
        found, expected = (tf.convert_to_tensor(g).numpy() for g in (a, b))
        atol = relative * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def assert_same_slices(ours, plain, relative):
    """Assert that each row has the same slices: Keras's optimizers treat each for itself."""
    by_row = []
    for g in (ours, plain):
        pairs = zip(g.indices.numpy().tolist(), g.values.numpy().tolist())
        by_row.append(sorted(pairs))
    for (row, values), (plain_row, plain_values) in zip(*by_row, strict=True):
        assert row == plain_row
        np.testing.assert_allclose(values, plain_values, rtol=relative * 10, atol=relative)


@pytest.mark.parametrize("policy", SOME_POLICIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1), (2,), ()])
def test_what_no_asked_result_depends_on_has_no_gradient(asked, mode, policy):
    def gradients(function):
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                results = function(x)
                loss = tf.add_n(
                    [tf.reduce_sum(results[n] ** 2) for n in asked] or [tf.reduce_sum(x)]
                )
            return tape.gradient(loss, [x, TRUNK, *HEADS])

        return in_mode(mode, step)(X)

    ours = gradients(kr.checkpoint(three_heads, policy=POLICIES[policy]))
    plain = gradients(three_heads)
    if 2 in asked:  # the infinite slope makes no number of the trunk's gradient, in both
        assert np.isnan(ours[0]).all()
        assert np.isnan(plain[0]).all()
        ours, plain = ours[2:], plain[2:]
        assert [g is None for g in ours] == [g is None for g in plain] == [True, True, False]
        return
    assert_same_structure(ours, plain, relative=1e-5)


@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_so_it_is_for_gradients_of_a_graph(mode):
    def gradients(function):
        def step(x):
            return tf.gradients(tf.reduce_sum(function(x)[1]), [x, TRUNK, *HEADS])

        return in_mode(mode, step)(X)

    assert_same_structure(
        gradients(kr.checkpoint(three_heads)), gradients(three_heads), relative=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_tape_may_ask_for_one_result_after_the_other(mode):
    def gradients(function):
        def step(x):
            with tf.GradientTape(persistent=True) as tape:
                first, second, _ = function(x)
                losses = [
                    tf.reduce_sum(first**2),
                    tf.reduce_sum(second),
                    tf.reduce_sum(first * second),
                ]
            return [g for loss in losses for g in tape.gradient(loss, [TRUNK, *HEADS])]

        return in_mode(mode, step)(X)

    assert_same_structure(
        gradients(kr.checkpoint(three_heads)), gradients(three_heads), relative=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives_have_the_structure_too(mode):
    def gradients(function):
        first = gradient_step(lambda x: function(x)[1], of_inputs=True)
        options = {"weights": [TRUNK, *HEADS], "of_inputs": True}
        return gradients_of(lambda x: first(x)[0], mode, X, **options)

    assert_same_structure(
        gradients(kr.checkpoint(three_heads)), gradients(three_heads), relative=1e-4
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_that_draws_numbers_runs_once_though_one_of_its_results_is_not_asked_for(mode):
    """It stacks what it has drawn when it is differentiated: the backward pass reads what the
    forward pass kept.
    """
    count = tf.Variable(0)

    def walk(x, y):
        def body(i, h, other):
            seed = tf.stack([count.assign_add(1), 3])
            mask = tf.cast(tf.random.stateless_uniform((3, 4), seed) < 0.5, tf.float32)
            return i + 1, h * mask * 2.0, other + mask

        return tf.while_loop(lambda i, *_: i < 3, body, (0, x, y), maximum_iterations=3)[1:]

    if mode == "jit":
        pytest.skip("XLA does not differentiate loops that assign")
    found = []
    for function in (kr.checkpoint(walk), walk):
        count.assign(0)
        options = {"of_inputs": True, "loss": lambda results: tf.reduce_sum(results[0])}
        found.append(gradients_of(function, mode, X, X + 1.0, **options)[:1])
    assert_same_structure(*found)
    assert count.numpy() == 3


@pytest.mark.parametrize("policy", SOME_POLICIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [looked_up, tied, looked_up_twice], ids=lambda f: f.__name__)
def test_the_gradient_of_gathered_rows_is_sparse(function, mode, policy):
    found = [
        gradients_of(each, mode, IDS, weights=[TABLE, TRUNK])
        for each in (kr.checkpoint(function, policy=POLICIES[policy]), function)
    ]
    assert_same_structure(*found, relative=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_be_computed(mode):
    ours = kr.checkpoint(looked_up_by_what_is_computed)
    found = [
        gradients_of(function, mode, X, weights=[TABLE, TRUNK], of_inputs=True)
        for function in (ours, looked_up_by_what_is_computed)
    ]
    assert_same_structure(*found)
    # The product that finds them is not replayed: three whole numbers are kept.
    assert [r.shape for r in kr.saved_residuals(ours, X) if r.kind == "operation"] == [(3,)]


def test_the_place_of_rows_in_a_tensor_is_not_saved():
    """XLA would need it when it compiles, where a saved number is known at run time alone."""

    def of_one_batch(ids, number):
        return tf.gather(TABLE, ids[number])

    rows = kr.saved_residuals(kr.checkpoint(of_one_batch), IDS, tf.constant(1))
    assert not [row for row in rows if row.kind == "operation"]


@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_rows_of_a_batch_of_any_size(mode):
    found = []
    for function in (kr.checkpoint(looked_up), looked_up):
        step = tf.function(
            gradient_step(function, weights=[TABLE, TRUNK]),
            jit_compile=mode == "jit",
            input_signature=[tf.TensorSpec((None, None), tf.int32)],
        )
        found.append(step(IDS))
    assert_same_structure(*found, relative=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_is_an_argument(mode):
    def lookup(table, ids):
        return tf.tanh(tf.gather(table, ids))

    table = tf.convert_to_tensor(TABLE)
    ours, plain = (
        gradients_of(function, mode, table, IDS, of_inputs=True)
        for function in (kr.checkpoint(lookup), lookup)
    )
    assert_same_structure(ours, plain)


@pytest.mark.parametrize("mode", MODES)
def test_a_sparse_gradient_can_be_differentiated(mode):
    def gradients(function):
        first = gradient_step(function, weights=[TABLE])
        found = gradients_of(
            lambda ids: tf.convert_to_tensor(first(ids)[0]), mode, IDS, weights=[TABLE, TRUNK]
        )
        return [tf.convert_to_tensor(g) for g in found]

    assert_same_structure(gradients(kr.checkpoint(looked_up)), gradients(looked_up), relative=1e-5)


def section_with_lookup(h, ids):
    """What a section of a loop does: it reads a table that all sections share, and has a result
    that may go unread.
    """
    h = tf.tanh(h @ TRUNK + tf.reduce_sum(tf.gather(TABLE, ids), axis=0))
    return h, h @ HEADS[0], tf.math.log(h @ HEADS[1] * 0.0)


REQUESTS = [FinalOutput(0), StackedOutput(1, None), StackedOutput(2, None)]


def as_loop(h, ids):
    part = parted(section_with_lookup, [h, ids])
    roles = [Carry(0), Constant()]
    return scan_sections(
        part, [h, ids], count=3, roles=roles, requests=REQUESTS, batch=1, name="sections-0-2"
    )


def one_by_one(h, ids):
    seen = []
    for _ in range(3):
        h, *others = section_with_lookup(h, ids)
        seen.append(others)
    return h, tf.stack([y for y, _ in seen]), tf.stack([z for _, z in seen])


# All modes; the quick tests leave jit to CI.
JIT_IN_CI = ["eager", "graph", pytest.param("jit", marks=pytest.mark.long(every_case=True))]


@pytest.mark.parametrize("mode", JIT_IN_CI)
@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)])
def test_a_loop_keeps_the_structure(asked, mode):
    """Of three turns, each with slices of its own; the table of the head that nobody asks for has
    no gradient.
    """

    def loss(results):
        return tf.add_n([tf.reduce_sum(results[n] ** 2) for n in asked])

    options = {"weights": [TRUNK, TABLE, *HEADS], "of_inputs": True, "loss": loss}
    found = [
        gradients_of(function, mode, X, IDS[0], **options) for function in (as_loop, one_by_one)
    ]
    assert_same_structure(*found, relative=1e-5)


@pytest.mark.parametrize("mode", JIT_IN_CI)
def test_second_derivatives_of_a_loop_with_sparse_gradients(mode):
    def penalty(found):
        return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(g) ** 2) for g in found])

    def gradients(function):
        weights = [TABLE, TRUNK]
        first = gradient_step(lambda h, ids: function(h, ids)[0], weights=weights)
        found = gradients_of(first, mode, X, IDS[0], weights=weights, loss=penalty)
        return [tf.convert_to_tensor(g) for g in found]

    assert_same_structure(gradients(as_loop), gradients(one_by_one), relative=1e-4)


def test_rows_looked_up_in_a_loop_have_the_plain_loop_s_dense_gradient():
    def walk(x):
        def body(i, h):
            return i + 1, tf.sin(h * tf.gather(TABLE, IDS[0]))

        return tf.while_loop(lambda i, *_: i < 3, body, (0, x), maximum_iterations=3)[1]

    ours, plain = (
        gradients_of(function, "graph", X, weights=[TABLE])
        for function in (kr.checkpoint(walk), walk)
    )
    assert isinstance(plain[0], tf.Tensor), "TensorFlow adds up what each turn gives"
    assert_same_structure(ours, plain, relative=1e-5)
