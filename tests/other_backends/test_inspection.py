"""What a function keeps and repeats, as numbers that are the same on JAX and PyTorch."""

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError

ops, policies = keras.ops, kr.policies
X = np.linspace(0, 1, 32, dtype="float32").reshape(8, 4)


def exponentials(x):
    """Their gradients read their results."""
    for _ in range(4):
        x = ops.exp(x)
    return ops.sum(x)


def sines(x):
    for _ in range(8):
        x = ops.sin(x)
    return x


def halves(functions):
    """Compose functions so that of each half the second one recomputes, and so on inside."""
    if len(functions) == 1:
        return functions[0]
    first, second = functions[: len(functions) // 2], functions[len(functions) // 2 :]
    inner, outer = halves(first), kr.checkpoint(halves(second))
    return lambda x: outer(inner(x))


def test_a_plain_function_keeps_its_intermediate_values():
    rows = kr.saved_residuals(exponentials, X)
    # The four exponentials, each of 8 * 4 elements of 4 bytes.
    assert [(row.origin, row.shape, row.bytes) for row in rows] == [("exp", (8, 4), 128)] * 4
    assert {row.source.function for row in rows} == {"exponentials"}
    assert kr.replay_count(exponentials, X) == 0


def test_a_checkpointed_function_keeps_its_argument():
    ours = kr.checkpoint(sines)
    (row,) = kr.saved_residuals(ours, X)
    assert str(row) == "float32[8,4] from the argument x"
    # Of the eight sines the last is not needed again.
    assert kr.replay_count(ours, X) == 7


def test_halves_of_halves():
    sine = ops.sin
    composed = halves([sine] * 8)
    # The sine itself, and what the last 1, 2 and 4 of the first 2, 4 and 8 are given.
    assert len(kr.saved_residuals(composed, X)) == 1 + 3
    # The last four run again but for the last one, and of the two before them the first one.
    assert kr.replay_count(composed, X) == 3 + 1


def test_names_that_are_kept():
    @kr.checkpoint(policy=policies.save_names("half"))
    def function(x):
        half = kr.checkpoint_name(ops.exp(ops.exp(x)), "half")
        return ops.exp(ops.exp(half))

    rows = kr.saved_residuals(function, X)
    assert ("name", "half") in [(row.kind, row.origin) for row in rows]
    assert [row.bytes for row in rows if row.kind == "name"] == [128]


def test_layers_variables_and_masks():
    layers = [keras.layers.Dense(16, "tanh", name="first"), keras.layers.Dropout(0.5, seed=1)]
    block = keras.Sequential([keras.Input((4,)), *layers], name="block")
    plain = kr.saved_residuals(block, X, training=True)
    # 8 rows of 16 features, 4 bytes each, made in the layer.
    tanh = [row for row in plain if row.origin == "tanh" or "first" in row.layer]
    assert (tanh[0].shape, tanh[0].bytes) == ((8, 16), 512)
    assert "first" in tanh[0].layer
    ours = kr.saved_residuals(kr.checkpoint(block), X, training=True)
    # The input, kernel and bias, and the state of the dropout's generator: two integers.
    assert [row.bytes for row in ours] == [8 * 4 * 4, 4 * 16 * 4, 16 * 4, 2 * 4]
    names = [row.origin for row in ours[1:3]]
    assert names == [variable.path for variable in block.trainable_variables]


def test_state_is_what_it_was():
    layer = keras.layers.BatchNormalization()
    dropout = keras.layers.Dropout(0.5, seed=3)
    block = keras.Sequential([keras.Input((4,)), layer, dropout])
    before = [ops.convert_to_numpy(v) for v in block.variables]
    kr.saved_residuals(kr.checkpoint(block), X, training=True)
    kr.replay_count(block, X, training=True)
    for variable, value in zip(block.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


def test_a_layer_that_was_never_called():
    rows = kr.saved_residuals(keras.layers.Dense(3, "exponential", name="new"), X)
    names = [row.origin for row in rows]
    assert names[:2] == ["inputs", "new/kernel"]
    assert (rows[-1].origin, rows[-1].bytes) == ("exp", 8 * 3 * 4)


def test_paths_of_arguments():
    def function(params, *rest, scale):
        return ops.sum(params["w"][0] * rest[0] * scale)

    rows = kr.saved_residuals(function, {"w": [X]}, 2 * X, scale=3 * X)
    origins = [row.origin for row in rows if row.kind == "argument"]
    assert origins == ["params['w'][0]", "rest[0]", "scale"]


def test_programs_share_letters():
    programs = kr.forward_backward(kr.checkpoint(lambda x: ops.sin(ops.sin(x))), X)
    forward, backward = programs.forward, programs.backward
    assert [each.operation for each in forward.equations] == ["sin", "sin"]
    assert [each.operation for each in backward.equations if each.replayed] == ["sin"]
    assert str(forward.inputs[0]) == "a: float32[8,4]  # argument x"
    assert [value.origin for value in backward.inputs] == ["argument x", "gradient of a result"]
    assert len(backward.outputs) == 1


def test_what_is_saved_has_the_same_letter_in_both():
    programs = kr.forward_backward(ops.exp, X)
    (saved,) = [value for value in programs.backward.inputs if value.origin == "saved"]
    assert saved.letter in programs.forward.outputs
    assert not any(equation.replayed for equation in programs.backward.equations)


def test_both_are_printed(capsys):
    kr.print_saved_residuals(kr.checkpoint(sines), X)
    assert capsys.readouterr().out == "float32[8,4] from the argument x\n"
    kr.print_forward_backward(kr.checkpoint(lambda x: ops.sin(ops.sin(x))), X)
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["forward", "computation:", "backward", "computation:"]


def test_nothing_has_a_gradient():
    with pytest.raises(InvalidArgumentError, match="returns only bool, which have no gradient"):
        kr.saved_residuals(lambda x: x > 0, X)
    with pytest.raises(InvalidArgumentError, match="has no input with a gradient: n is int32"):
        kr.replay_count(lambda n: ops.cast(n, "float32"), np.ones(3, "int32"))
