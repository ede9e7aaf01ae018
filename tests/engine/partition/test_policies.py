"""Policies: what each saves of one function, that they are values, and how the engine warns of
useless ones.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.policies import (
    Decision,
    either,
    save_all_but_names,
    save_and_offload_names,
    save_everything,
    save_matmuls,
    save_matmuls_without_batch_dims,
    save_names,
    save_nothing,
)
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning
from tests.oracle import gradient_step, in_mode, numbers

from ..engine_vs_plain import assert_same, differentiate, parted

W = numbers(4, 8, seed=1)


def attention(x):
    """Of shape (2, 3, 4): one product with a matrix, one of two stacks, and three results with
    names.
    """
    q = checkpoint_name(tf.tanh(x @ W), "q")  # (2, 3, 8)
    scores = tf.matmul(q, q, transpose_b=True)  # (2, 3, 3)
    a = checkpoint_name(tf.sin(scores), "a")
    return checkpoint_name(tf.exp(a), "e") * 2.0


X = numbers(2, 3, 4)


@pytest.mark.parametrize(
    ("policy", "saved"),
    [
        # The gradients of tanh and of the second product read q, that of sin reads the scores, that
        # of exp its result.
        (save_everything, ["BatchMatMulV2", "Exp", "Tanh"]),
        (save_nothing, []),
        (save_matmuls, ["BatchMatMulV2", "BatchMatMulV2"]),
        (save_matmuls_without_batch_dims, ["BatchMatMulV2"]),
        (save_names("q"), ["Tanh"]),
        (save_names("q", "a"), ["Sin", "Tanh"]),
        (save_all_but_names("q", "a"), ["Exp"]),
        (either(save_names("q"), save_matmuls), ["BatchMatMulV2", "Tanh"]),
        (save_and_offload_names(save=("q",), offload=("e",)), ["Exp", "Tanh"]),
        (lambda value: value.op.type == "Sin", ["Sin"]),
        (lambda value: value.shape[-1] == 8 and value.dtype == tf.float32, ["Tanh"]),
    ],
)
def test_what_is_saved(policy, saved):
    part = parted(attention, [X], policy)
    assert sorted(t.op.type for t in part.saved) == saved


@pytest.mark.parametrize(
    ("equation", "arguments", "saved"),
    [
        ("bij,jk->bik", [(2, 3, 4), (4, 5)], 1),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 0),
        ("ij,jk->ik", [(3, 4), (4, 5)], 1),
    ],
)
def test_a_batch_dimension_of_an_einsum_stands_in_both_factors_and_the_result(
    equation, arguments, saved
):
    function = lambda a, b: tf.exp(tf.sin(tf.einsum(equation, a, b)))  # noqa: E731
    arguments = [numbers(*shape) for shape in arguments]
    assert len(parted(function, arguments, save_matmuls).saved) == 1
    assert len(parted(function, arguments, save_matmuls_without_batch_dims).saved) == saved


def test_policies_are_values():
    pairs = [
        (save_names("a", "b"), save_names("b", "a"), save_names("a")),
        (save_all_but_names("a"), save_all_but_names("a"), save_names("a")),
        (
            either(save_names("a"), save_matmuls),
            either(save_matmuls, save_names("a")),
            either(save_nothing, save_matmuls),
        ),
        (
            save_and_offload_names(save=("a",), offload=("b",)),
            save_and_offload_names(save=("a",), offload=("b",)),
            save_and_offload_names(save=("b",), offload=("a",)),
        ),
        (save_matmuls, save_matmuls, save_matmuls_without_batch_dims),
        (save_nothing, save_nothing, save_everything),
    ]
    for one, like, other in pairs:
        assert one == like
        assert hash(one) == hash(like)
        assert one != other


def test_of_two_answers_the_one_that_keeps_more_holds():
    keep, offload = save_names("a"), save_and_offload_names(offload=("a", "q"))
    part = parted(attention, [X], either(offload, keep))
    offloaded = {part.saved[n].op.type for n in part.offloaded}
    assert sorted(t.op.type for t in part.saved) == ["Sin", "Tanh"]
    assert offloaded == {"Tanh"}


def test_a_callable_may_answer_with_a_decision():
    part = parted(
        attention,
        [X],
        lambda value: Decision.OFFLOAD if value.op.type == "Exp" else Decision.RECOMPUTE,
    )
    assert part.offloaded == {0}


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
def test_offloading_says_where_it_cannot_and_changes_no_number(jit):
    section = checkpoint(attention, policy=save_and_offload_names(save=("q",), offload=("a",)))
    reason = "one memory" if jit else "no device other"
    with pytest.warns(RecomputeWarning, match=f"saved where they are .*{reason}"):
        ours = differentiate(section, [X], jit=jit)
    assert_same(ours, differentiate(attention, [X], jit=jit), relative=1e-6)


def test_a_name_that_is_not_marked_is_an_error():
    with pytest.raises(
        InvalidArgumentError, match=r"'k'.*'attention' marks no such value: it marks 'a', 'e', 'q'"
    ):
        checkpoint(attention, policy=either(save_names("k"), save_matmuls))(X)
    with pytest.raises(InvalidArgumentError, match="marks no value at all"):
        checkpoint(tf.sin, policy=save_all_but_names("k"))(X)


def test_a_policy_that_matches_nothing_is_noticed():
    with pytest.warns(
        RecomputeWarning, match=r"SaveMatmuls.*matches no value.*'<lambda>'.*Exp float32\(2, 3, 4\)"
    ):
        checkpoint(lambda x: tf.exp(tf.sin(x)), policy=save_matmuls)(X)


def test_a_checkpoint_that_saves_nothing_is_noticed():
    def linear(x):
        return 3.0 * x + 1.0

    with pytest.warns(
        RecomputeWarning, match="'linear' saves no memory: its gradient reads no intermediate value"
    ):
        checkpoint(linear)(X)
    with pytest.warns(
        RecomputeWarning, match="saves no memory: its gradient reads only what the policy saves"
    ):
        checkpoint(lambda x: tf.exp(checkpoint_name(tf.sin(x), "s")), policy=lambda _: True)(X)


def test_shapes_are_kept_instead_of_the_tensors_that_have_them():
    """With an unknown batch size the gradient of a mean asks for the shape of the sine: 8 bytes,
    not the sine again.

    Replayed is the exponential alone, whose cosine the sine's gradient takes.
    """
    part = parted(
        lambda x: tf.reduce_mean(tf.sin(tf.exp(x)), axis=0),
        [tf.TensorSpec((None, 4))],
        save_nothing,
    )
    assert {t.op.type for t in part.saved} == {"Shape"}
    assert [op.type for op in part.replayed] == ["Exp"]


def test_lists_of_unknown_rows_are_not_kept_under_xla():
    """TensorFlow asks for zeros of what a program keeps, and XLA has none of a list of tensors of
    unknown shape.
    """

    def loop(x, turns):
        turn = lambda i, h: (i + 1, tf.sin(h) * tf.cos(h))  # noqa: E731
        return tf.while_loop(lambda i, _: i < turns, turn, (0, x), maximum_iterations=3)[1]

    def gradient(function):
        step = gradient_step(function, of_inputs=True, loss=tf.identity)
        signature = [tf.TensorSpec((None, 4)), tf.TensorSpec((), tf.int32)]
        compiled = in_mode("jit", step, input_signature=signature)
        return compiled(numbers(3, 4, seed=2), tf.constant(2))[0]

    kept = checkpoint(loop, policy=lambda value: value.dtype == tf.variant)
    with pytest.warns(RecomputeWarning, match="matches no value"):
        ours = gradient(kept)
    np.testing.assert_array_equal(ours, gradient(loop))


@pytest.mark.parametrize("jit", [False, True])
def test_the_empty_list_of_a_loop_is_not_kept(jit):
    """Where loops are nested the gradient asks for its zero, and XLA has none of a list that
    nothing was ever put in.
    """

    def loop(step, x):
        return tf.while_loop(
            lambda i, _: i < 2, lambda i, y: (i + 1, step(y)), (0, x), maximum_iterations=2
        )[1]

    def nested(x):
        return loop(lambda y: loop(tf.tanh, y), x)

    kept = checkpoint(nested, policy=lambda value: value.op.type == "EmptyTensorList")
    with pytest.warns(RecomputeWarning, match="matches no value"):
        ours = differentiate(kept, [X], jit=jit)
    assert_same(ours, differentiate(nested, [X], jit=jit))
