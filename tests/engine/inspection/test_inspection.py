"""Residuals, replays and programs of the notebook's functions, written down beside what JAX prints
for them.

Where TensorFlow differs, and why: its gradient of sin(y) is dy * cos(y) with the cosine taken in
the backward pass, so y is the residual where JAX saves cos(y); y is the product's result in another
shape, hence of shape [n, 1].
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.inspection import (
    forward_backward,
    print_forward_backward,
    print_saved_residuals,
    replay_count,
    residuals,
    saved_residuals,
)
from keras_recompute.engine.policies import (
    Decision,
    save_all_but_names,
    save_and_offload_names,
    save_matmuls,
    save_matmuls_without_batch_dims,
    save_names,
    save_nothing,
)
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning

from .notebook import PARAMS, WEIGHTS, chain_compose, f, f2, f3, f4, loss, recursive_checkpoint

ARGUMENTS = [
    "float32[5,4] from the argument W1",
    "float32[6,5] from the argument W2",
    "float32[7,6] from the argument W3",
    "float32[4] from the argument x",
]


def lines(fn, *args):
    return [str(row) for row in saved_residuals(fn, *args)]


def test_f():
    """9 in JAX: four arguments, sin and cos of two layers, cos of the last.

    Here 9 as well, products instead of cosines.
    """
    assert lines(f, *WEIGHTS) == [
        *ARGUMENTS,
        "float32[5,1] output of MatMul from notebook.py:14 (g)",
        "float32[5] output of Sin from notebook.py:15 (g)",
        "float32[6,1] output of MatMul from notebook.py:14 (g)",
        "float32[6] output of Sin from notebook.py:15 (g)",
        "float32[7,1] output of MatMul from notebook.py:14 (g)",
    ]
    assert replay_count(f, *WEIGHTS) == 0


def test_f2_each_layer_checkpointed():
    """6 in JAX, the same 6 here; and the last checkpoint is useless (the notebook's
    ``f_grad_bad2``), which is said.
    """
    with pytest.warns(
        RecomputeWarning, match="in 'f2', the checkpoint of 'g' is the last section"
    ) as said:
        found = lines(f2, *WEIGHTS)
    assert len(said) == 1, "the two checkpoints before it are not useless"
    assert found == [
        *ARGUMENTS,
        "float32[5] output of Sin from notebook.py:15 (g)",
        "float32[6] output of Sin from notebook.py:15 (g)",
    ]
    assert replay_count(f2, *WEIGHTS) == 3, "the three products; no gradient reads the sines again"


def test_f3_products_saved():
    """7 in JAX, the same 7 here."""
    assert lines(f3, *WEIGHTS) == [
        *ARGUMENTS,
        *(f"float32[{n},1] output of MatMul from notebook.py:14 (g)" for n in (5, 6, 7)),
    ]
    assert replay_count(f3, *WEIGHTS) == 2, "the first two sines"


def test_f4_one_name_saved():
    """5 in JAX, the same 5 here."""
    assert lines(f4, *WEIGHTS) == [*ARGUMENTS, "float32[5] named 'a' from notebook.py:37 (f4)"]
    recomputed = [str(row) for row in residuals(f4, *WEIGHTS) if row.decision is Decision.RECOMPUTE]
    assert recomputed == [
        "float32[5,1] output of MatMul from notebook.py:14 (g), recomputed",
        "float32[6,1] output of MatMul from notebook.py:14 (g), recomputed",
        "float32[6] named 'b' from notebook.py:38 (f4), recomputed",
        "float32[7,1] output of MatMul from notebook.py:14 (g), recomputed",
    ]


PATHS = [
    *(f"float32[4,4] from the argument params[{n}]" for n in range(3)),
    "float32[4] from the argument x",
]


def test_loss_and_its_paths():
    """9 in JAX.

    Here 9: JAX saves the product 2 * (predict - y), TensorFlow the difference whose square it
    takes.
    """
    assert lines(loss, *PARAMS) == [
        *PATHS,
        "float32[4,1] output of MatMul from notebook.py:44 (layer)",
        "float32[4] named 'layer0_output' from notebook.py:51 (predict)",
        "float32[4,1] output of MatMul from notebook.py:44 (layer)",
        "float32[4] named 'layer1_output' from notebook.py:51 (predict)",
        "float32[4] output of Sub from notebook.py:56 (loss)",
    ]


def test_loss_with_its_products_saved():
    """8 in JAX, the same 8 here: y is needed again for the difference."""
    section = checkpoint(loss, policy=save_matmuls_without_batch_dims)
    assert lines(section, *PARAMS) == [
        *PATHS,
        "float32[4] from the argument y",
        *["float32[4,1] output of MatMul from notebook.py:44 (layer)"] * 2,
        "float32[4,1] output of MatMul from notebook.py:52 (predict)",
    ]


def test_loss_with_all_names_but_one():
    """The five inputs, and ``layer0_output``, which the policy saves like every name but
    ``layer1_output``.
    """
    section = checkpoint(loss, policy=save_all_but_names("layer1_output"))
    assert lines(section, *PARAMS) == [
        *PATHS,
        "float32[4] from the argument y",
        "float32[4] named 'layer0_output' from notebook.py:51 (predict)",
    ]


@pytest.mark.parametrize(
    ("sines", "plain", "recursive", "replayed"), [(8, 8, 4, 7 - 4), (16, 16, 5, 15 - 8)]
)
def test_sines(sines, plain, recursive, replayed):
    """8 sines: 8 residuals plain and 4 recursive, 16 sines: 16 and 5, as in JAX.

    Plain, each sine's gradient reads its input: x and the first n - 1 results. Recursive, x and the
    input of the second half, of its second half, and so on, then both inputs of the last pair.
    """
    x = tf.constant(3.0)
    assert len(saved_residuals(chain_compose([tf.sin] * sines), x)) == plain
    composed = recursive_checkpoint([tf.sin] * sines)
    assert len(saved_residuals(composed, x)) == recursive
    assert replay_count(chain_compose([tf.sin] * sines), x) == 0
    assert replay_count(composed, x) >= replayed
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours, theirs = composed(x), chain_compose([tf.sin] * sines)(x)
    assert tape.gradient(ours, x) == tape.gradient(theirs, x)


def test_the_whole_loss_checkpointed_is_noticed():
    """The notebook's ``f_grad_bad``: everything is run again before anything is gained."""
    with pytest.warns(
        RecomputeWarning,
        match="checkpoint of 'loss' is the last section.*Checkpoint the layers before it",
    ):
        residuals(checkpoint(loss), *PARAMS)


def test_variables_captures_and_offloaded_values_are_named():
    dense = keras.layers.Dense(8, name="hidden")
    dense.build((None, 4))
    closed_over = tf.ones((200, 8))
    policy = save_and_offload_names(save=("sine",), offload=("power",))

    @checkpoint(policy=policy)
    def function(batch):
        y = checkpoint_name(tf.sin(dense(batch["x"])), "sine")
        return checkpoint_name(tf.exp(y * closed_over), "power")

    rows = saved_residuals(function, {"x": tf.ones((200, 4))})
    assert [str(row).split(" from test_")[0] for row in rows] == [
        "float32[200,4] from the argument batch['x']",
        "float32[4,8] from the variable hidden/kernel",
        "float32[8] from the variable hidden/bias",
        "float32[200,8] from the captured tensor",
        "float32[200,8] named 'sine'",
        "float32[200,8] named 'power'",
    ]
    assert rows[-1].decision is Decision.OFFLOAD
    assert str(rows[-1]).endswith("(function), offloaded")
    assert [row.bytes for row in rows] == [3200, 128, 32, 6400, 6400, 6400]
    assert rows[-1].source.file == "test_inspection.py"


@pytest.mark.long
def test_unknown_sizes_are_said_not_guessed():
    @tf.function
    def inspect(x):
        rows.extend(saved_residuals(lambda x: tf.exp(tf.sin(x)), x))
        return x

    rows: list = []
    inspect.get_concrete_function(tf.TensorSpec((None, 4)))
    assert str(rows[-1]).startswith("float32[?,4] output of Exp")
    assert rows[-1].bytes is None


def test_the_lists_that_a_loop_stacks_have_no_known_size():
    v = tf.Variable(2.0, name="v")
    body = lambda i, y: (i + 1, tf.sin(y * v))  # noqa: E731
    rows = saved_residuals(
        lambda x: tf.while_loop(lambda i, _: i < 3, body, (0, x), maximum_iterations=3)[1],
        tf.ones(2),
    )
    lists = [row for row in rows if row.dtype == "variant"]
    assert lists
    assert all(row.bytes is None and row.origin == "While" for row in lists)


def test_print_saved_residuals(capsys):
    print_saved_residuals(f4, *WEIGHTS)
    assert capsys.readouterr().out.splitlines() == lines(f4, *WEIGHTS)


def test_the_two_programs_compute_the_function_and_its_gradient():
    """Read the listings back as programs: every letter is bound before its use, and what is
    replayed is marked.
    """
    programs = forward_backward(f3, *WEIGHTS)
    for listing in (programs.forward, programs.backward):
        bound = {value.letter for value in listing.inputs}
        for equation in listing.equations:
            assert bound.issuperset(o for o in equation.operands if o.isalpha()), equation
            bound.update(value.letter for value in equation.results)
        assert bound.issuperset(listing.outputs)
    handed_over = [value.letter for value in programs.backward.inputs if value.origin == "saved"]
    assert list(programs.forward.outputs[1:]) == handed_over
    assert len(handed_over) == 3
    assert [e.operation for e in programs.backward.equations if e.replayed].count("Sin") == 2
    assert [e.operation for e in programs.backward.equations].count("MatMul") == 6
    assert not any(e.replayed for e in programs.forward.equations)


def test_print_forward_backward_stands_side_by_side(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    print_forward_backward(f3, *WEIGHTS)
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    assert first.split() == ["forward", "computation:", "backward", "computation:"]
    assert "\x1b[" not in out, "no colour where there is no terminal"
    assert any("# argument W1" in line[:40] and "# argument W1" in line[40:] for line in rest)
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_forward_backward(f3, *WEIGHTS)
    assert "\x1b[33m" in capsys.readouterr().out


def test_what_has_no_gradient_is_said():
    def to_int(x):
        return tf.cast(tf.sin(x), tf.int32)

    def of_int(n):
        return tf.sin(tf.cast(n, tf.float32))

    with pytest.raises(
        InvalidArgumentError, match="'to_int' returns only int32, which have no gradient"
    ):
        saved_residuals(to_int, tf.ones(3))
    with pytest.raises(
        InvalidArgumentError, match=r"'of_int' has no input with a gradient: n is int32"
    ):
        saved_residuals(of_int, tf.constant([1, 2]))
    with pytest.raises(
        InvalidArgumentError, match=r"Integers and Python numbers have none: .*tf.constant\(3.0\)"
    ):
        replay_count(tf.sin, 3.0)


def test_inspection_runs_nothing():
    calls = tf.Variable(0)

    def function(x):
        calls.assign_add(1)
        return tf.exp(tf.sin(x))

    for look in (saved_residuals, forward_backward, replay_count):
        look(checkpoint(function, policy=save_nothing), tf.ones(3))
    assert calls.numpy() == 0


def test_a_dropout_mask_is_a_seed():
    """Kept of a dropout is what Keras draws its mask from, two integers, marked as saved whatever
    the policy says.
    """
    drop = keras.layers.Dropout(0.5, seed=1)
    rows = saved_residuals(
        checkpoint(lambda x: tf.exp(drop(tf.sin(x), training=True))), np.ones((64, 64), np.float32)
    )
    kept = [row for row in rows if row.kind == "operation"]
    assert sum(row.bytes for row in kept) <= 16, kept
    assert not set(saved_residuals(checkpoint(f, policy=save_matmuls), *WEIGHTS)) & set(kept)
    assert save_names("x") != save_names("y")
