"""Residuals and replays on JAX, beside what JAX itself says and hands over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

import keras_recompute as kr

policies = kr.policies
RNG = np.random.default_rng(0)
W1, W2, W3, X = (RNG.normal(size=size).astype("float32") for size in ((5, 4), (6, 5), (7, 6), (4,)))


def g(W, x):
    return jnp.sin(W @ x)


def f(W1, W2, W3, x, layer=g):
    x = kr.checkpoint_name(layer(W1, x), "a")
    x = kr.checkpoint_name(layer(W2, x), "b")
    return kr.checkpoint_name(layer(W3, x), "c")


def f2(*weights):
    return f(*weights, layer=kr.checkpoint(g))


def of_jax(function, capsys):
    """Return the lines that JAX prints."""
    capsys.readouterr()
    print_saved_residuals(function, W1, W2, W3, X)
    return capsys.readouterr().out.splitlines()


# As in the notebook of jax.checkpoint: 9, 6, 7 and 5 residuals. Each layer has a product and a
# sine: nothing runs again, three products, two sines, and what comes after the first layer.
NOTEBOOK = {
    "plain": (f, f, 9, 0),
    "each layer": (f2, lambda *w: f(*w, layer=jax.checkpoint(g)), 6, 3),
    "products": (
        kr.checkpoint(f, policy=policies.save_matmuls),
        jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
        7,
        2,
    ),
    "a name": (
        kr.checkpoint(f, policy=policies.save_names("a")),
        jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names("a")),
        5,
        4,
    ),
}


@pytest.mark.parametrize("name", NOTEBOOK)
def test_the_notebook(name, capsys):
    ours, theirs, residuals, replays = NOTEBOOK[name]
    rows = kr.saved_residuals(ours, W1, W2, W3, X)
    assert len(rows) == residuals
    if name != "plain":
        assert kr.replay_count(theirs, W1, W2, W3, X) == replays
    assert kr.replay_count(ours, W1, W2, W3, X) == replays
    # JAX writes f32[5] where we write float32[5].
    types = sorted(str(row).split()[0].replace("float", "f") for row in rows)
    assert types == sorted(line.split()[0] for line in of_jax(theirs, capsys))


@pytest.mark.parametrize("name", NOTEBOOK)
def test_the_rows_are_what_the_forward_pass_hands_over(name):
    """Beside the arguments, which the caller holds anyway."""
    ours, *_ = NOTEBOOK[name]
    _, pull_back = jax.vjp(ours, W1, W2, W3, X)
    arguments = {np.asarray(a).tobytes() for a in (W1, W2, W3, X)}
    handed = [np.asarray(leaf) for leaf in jax.tree.leaves(pull_back)]
    handed = [value.nbytes for value in handed if value.tobytes() not in arguments]
    rows = kr.saved_residuals(ours, W1, W2, W3, X)
    assert sorted(row.bytes for row in rows if row.kind != "argument") == sorted(handed)


def test_other_ways_to_recompute_are_seen_too():
    def sines(x):
        return jnp.sin(jnp.sin(jnp.sin(x)))

    for function in (jax.checkpoint(sines), jax.jit(kr.checkpoint(sines))):
        assert [row.origin for row in kr.saved_residuals(function, X)] == ["x"]
        assert kr.replay_count(function, X) == 2
        replayed = kr.forward_backward(function, X).backward.equations
        assert [each.operation for each in replayed if each.replayed] == ["sin", "sin"]


def test_a_loop_counts_as_one():
    def loop(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=5)[0]

    (row,) = kr.saved_residuals(loop, X)
    assert (row.origin, row.shape, row.bytes) == ("scan", (5, 4), 5 * 4 * 4)
    assert kr.replay_count(loop, X) == 0
    # The loop runs again for its residuals; of the sines around it the first one.
    around = kr.checkpoint(lambda x: jnp.sin(loop(jnp.sin(x))))
    assert [row.origin for row in kr.saved_residuals(around, X)] == ["x"]
    assert kr.replay_count(around, X) == 2


def test_a_loop_over_recomputed_bodies():
    body = kr.checkpoint(lambda c: jnp.sin(jnp.sin(c)))

    def loop(x):
        return jax.lax.scan(lambda c, _: (body(c), None), x, None, length=5)[0]

    (row,) = kr.saved_residuals(loop, X)
    # What each body is given, stacked.
    assert (row.origin, row.shape) == ("scan", (5, 4))
    # Back-propagation is one loop, whose body runs a sine again.
    assert kr.replay_count(loop, X) == 1


def test_a_branch_of_the_user_counts_as_one():
    def branch(x):
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sin(jnp.sin(x)), jnp.cos, x)

    assert kr.replay_count(branch, X) == 0
    assert kr.replay_count(kr.checkpoint(lambda x: jnp.exp(branch(x))), X) >= 1


def test_offloaded_and_captured_values():
    closed_over = jnp.ones(4)

    @kr.checkpoint(policy=policies.save_and_offload_names(save=("sine",), offload=("power",)))
    def function(x):
        y = kr.checkpoint_name(jnp.sin(x), "sine")
        return jnp.sin(kr.checkpoint_name(jnp.exp(y * closed_over), "power"))

    rows = kr.saved_residuals(function, X)
    assert [(row.kind, row.origin) for row in rows] == [
        ("argument", "x"),
        ("captured tensor", ""),
        ("name", "sine"),
        ("name", "power"),
    ]
    assert rows[-1].decision is policies.Decision.OFFLOAD
    assert str(rows[-1]).endswith("(function), offloaded")


def test_constants_and_views_do_not_count():
    def function(x):
        scale = jnp.full((4,), 2.0) + 1.0
        return jnp.sum(jnp.sin(jnp.sin((x * scale).reshape(2, 2))))

    # Of the scale, which is known, only its product with x; and the first sine.
    assert kr.replay_count(kr.checkpoint(function), X) == 2
