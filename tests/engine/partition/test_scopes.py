"""Scopes: what is made inside is recomputed or kept, wherever it is read, and where that cannot be,
it is said.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.inspection import saved_residuals
from keras_recompute.engine.partition.scopes import keep_scope, recompute_scope
from keras_recompute.engine.policies import save_everything, save_nothing
from keras_recompute.errors import RecomputeWarning
from tests.oracle import numbers

from ..engine_vs_plain import assert_same, differentiate, parted

A, B, C = (numbers(4, 4, seed=n) for n in range(3))


def saved(function, policy=save_everything):
    return sorted(t.op.type for t in parted(function, [A, B, C], policy).saved)


def replayed(function, policy=save_everything):
    return sorted(op.type for op in parted(function, [A, B, C], policy).replayed)


def test_the_seeds_own_example():
    """x = a + b inside, y = x * c outside and after: x is not stored, a + b is run again, the
    product is not.
    """

    def function(a, b, c):
        with recompute_scope():
            x = a + b
        return x * c

    assert saved(lambda a, b, c: (a + b) * c) == ["AddV2"]
    assert saved(function) == []
    assert replayed(function) == ["AddV2"]


def test_what_stands_outside_is_kept_and_what_stands_inside_is_not():
    def function(a, b, c):
        u = tf.exp(a)  # kept: the sine inside is made of it
        with recompute_scope():
            x = tf.sin(u * b)
        y = tf.exp(x)  # kept
        with recompute_scope():
            z = tf.tanh(y + c)
        return tf.exp(z)  # kept

    assert saved(function) == ["Exp", "Exp", "Exp"]
    # sin itself is read by no gradient: that of exp reads its result
    assert replayed(function) == ["AddV2", "Mul", "Tanh"]


def test_keep_scope_keeps_what_a_policy_would_recompute():
    def function(a, b, c):
        with keep_scope():
            x = tf.exp(a * b)
        return tf.exp(tf.sin(x) * c)

    assert saved(function, save_nothing) == ["Exp"]


@pytest.mark.parametrize("policy", [save_everything, save_nothing], ids=str)
def test_the_innermost_scope_decides(policy):
    def function(a, b, c):
        with recompute_scope():
            x = tf.exp(a)
            with keep_scope():
                y = tf.exp(x * b)
                with recompute_scope():
                    z = tf.exp(y * c)
            return tf.sin(tf.exp(z))

    # the sine's own argument is made in the outer scope, so of the four powers only the second is
    # kept
    assert saved(function, policy) == ["Exp"]


def test_random_values_made_inside_are_drawn_once():
    def function(a):
        with recompute_scope():
            mask = tf.cast(tf.random.uniform((4, 4)) < 0.5, tf.float32)
            x = tf.exp(a) * mask
        return x * x

    x = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = checkpoint(function, policy=save_everything)(x)
    # d(e^2a m) = 2 e^2a m, and m is 0 or 1: with another mask some element would differ
    tf.debugging.assert_near(tape.gradient(y, x), 2 * y)
    assert 0 < tf.math.count_nonzero(y) < 16


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_numbers_are_those_without_scopes(jit):
    def body(a, b, c, scope):
        with scope():
            x = tf.sin(a @ b)
        return tf.exp(x) @ tf.cos(x * c)

    import contextlib

    plain = differentiate(lambda a, b, c: body(a, b, c, contextlib.nullcontext), [A, B, C], jit=jit)
    for scope in (recompute_scope, keep_scope):
        for policy in (save_everything, save_nothing):
            ours = checkpoint(lambda a, b, c, scope=scope: body(a, b, c, scope), policy=policy)
            assert_same(
                differentiate(ours, [A, B, C], jit=jit), plain, relative=1e-6 if jit else 0.0
            )


def test_saved_residuals_show_the_scope():
    def function(a, b, c):
        with recompute_scope():
            x = a + b
        return x * c

    rows = saved_residuals(checkpoint(function, policy=save_everything), A, B, C)
    assert [row.origin for row in rows] == ["a", "b", "c"]


def test_a_scope_without_effect_says_so_and_how_to():
    with pytest.warns(
        RecomputeWarning, match=r"recompute_scope\(\) has no effect in eager code.*save_everything"
    ), recompute_scope():
        tf.sin(A)

    def body(x):
        with keep_scope():
            return tf.sin(x)

    with pytest.warns(
        RecomputeWarning, match=r"keep_scope\(\) has no effect in a function or loop body"
    ) as said:
        tf.function(body, autograph=False)(A)
    assert said[0].filename == __file__, "the warning points at the line of the scope"
    with pytest.warns(RecomputeWarning, match="loop body"):
        checkpoint(
            lambda x: tf.exp(
                tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, body(y)), (0, x))[1]
            )
        )(A)
