"""checkpoint(): everything that can be called, with everything that can be passed, against the
plain function.
"""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.policies import save_everything, save_matmuls, save_nothing
from tests.oracle import numbers

from ..engine_vs_plain import assert_same, differentiate

X = numbers(6, 4)
MODES = pytest.mark.parametrize("mode", ["eager", "graph", "jit"])


def gradients(function, arguments, variables=(), *, mode: str):
    """Return results and gradients in one of the three ways to run TensorFlow.

    Weights tell the elements apart.
    """
    return differentiate(function, arguments, variables, jit=mode == "jit", eager=mode == "eager")


def block(x, w):
    return tf.tanh(tf.matmul(tf.sin(tf.matmul(x, w)), w, transpose_b=True))


@MODES
@pytest.mark.parametrize("policy", [None, save_nothing, save_everything, save_matmuls], ids=str)
def test_outputs_and_gradients_are_those_of_the_plain_function(policy, mode):
    arguments = [X, numbers(4, 8, seed=1)]
    ours = gradients(checkpoint(block, policy=policy), arguments, mode=mode)
    assert_same(
        ours, gradients(block, arguments, mode=mode), relative=1e-6 if mode == "jit" else 0.0
    )


def test_it_is_a_decorator_with_and_without_arguments():
    @checkpoint
    def bare(x):
        """Doubled sine."""
        return tf.sin(x) * tf.exp(x)

    @checkpoint(policy=save_everything)
    def with_policy(x):
        return tf.sin(x) * tf.exp(x)

    assert bare.__name__ == "bare"
    assert bare.__doc__ == "Doubled sine."
    assert bare.__wrapped__.__name__ == "bare"
    assert with_policy.policy == save_everything
    np.testing.assert_array_equal(bare(X), with_policy(X))


def test_a_method_can_be_decorated():
    class Block:
        def __init__(self, factor):
            self.factor = tf.Variable(factor)

        @checkpoint
        def __call__(self, x):
            return tf.exp(tf.sin(x * self.factor))

    two, three = Block(2.0), Block(3.0)
    for _ in range(2):
        np.testing.assert_allclose(two(X), np.exp(np.sin(X * 2)), rtol=1e-6)
        np.testing.assert_allclose(three(X), np.exp(np.sin(X * 3)), rtol=1e-6)


@MODES
def test_a_layer_and_a_model_keep_their_attributes_and_get_their_gradients(mode):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Dense(8, "gelu"), keras.layers.LayerNormalization(), keras.layers.Dense(3)]
    )
    model.build((None, 4))
    ours = checkpoint(model)
    assert ours.__wrapped__ is model
    assert ours.variables is not None
    assert len(ours.trainable_variables) == 6
    assert ours.name == model.name
    variables = [v.value for v in model.trainable_variables]
    # TensorFlow fuses product, bias and gelu where nothing else reads what lies between them: other
    # sums, same numbers.
    assert_same(
        gradients(ours, [X], variables, mode=mode),
        gradients(model, [X], variables, mode=mode),
        relative=1e-6,
    )


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_layer_that_builds_on_first_call(graph):
    layer = keras.layers.Dense(3, "gelu")
    section = checkpoint(layer)
    result = (tf.function(section) if graph else section)(tf.constant(X))
    assert len(section.trainable_variables) == 2
    np.testing.assert_allclose(result, layer(X), rtol=1e-6)


def test_a_variable_that_is_made_on_first_call():
    class Scale(tf.Module):
        weight = None

        def __call__(self, x):
            if self.weight is None:
                self.weight = tf.Variable(3.0)
            return tf.sin(tf.exp(x) * self.weight)

    module = Scale()
    with tf.GradientTape() as tape:
        y = checkpoint(module)(X)
    np.testing.assert_allclose(
        tape.gradient(y, module.weight), np.sum(np.cos(np.exp(X) * 3) * np.exp(X)), rtol=1e-5
    )


Pair = collections.namedtuple("Pair", ["first", "second"])


@MODES
def test_any_nest_goes_in_and_comes_out(mode):
    def function(pair, scale, *, table, flag, times, label, nothing, indices, mask):
        assert nothing is None
        assert isinstance(flag, bool)
        assert label == "a"
        y = tf.exp(tf.gather(pair.first, indices) * scale[0]) if flag else pair.first
        for _ in range(times):
            y = tf.sin(y) * tf.cast(mask, y.dtype)
        return {"y": y, "rest": [table["b"], (label, None, times)], "pair": Pair(y * 2.0, indices)}

    def call(f):
        def run(x):
            return f(
                Pair(x, x),
                [2.0 * x[0, 0]],
                table={"b": np.float32(4.0)},
                flag=True,
                times=2,
                label="a",
                nothing=None,
                indices=np.array([0, 2, 2]),
                mask=tf.constant([[True], [False], [True]]),
            )

        return run

    ours, plain = call(checkpoint(function))(tf.constant(X)), call(function)(tf.constant(X))
    tf.nest.assert_same_structure(ours, plain)
    assert ours["rest"][1] == ("a", None, 2)
    assert ours["pair"].second.dtype == plain["pair"].second.dtype
    only_y = lambda f: lambda x: [call(f)(x)["y"], call(f)(x)["pair"].first]  # noqa: E731
    ours, plain = (gradients(only_y(f), [X], mode=mode) for f in (checkpoint(function), function))
    assert_same(
        ours, plain, relative=1e-6
    )  # TensorFlow multiplies constants with each other first, where it sees two


def test_python_values_that_differ_make_programs_that_differ():
    section = checkpoint(
        lambda x, n, text: tf.exp(tf.sin(x)) * n if text == "times" else tf.exp(tf.sin(x)) + n
    )
    base = np.exp(np.sin(X))
    for n in (1, True, 2, 1.0, 2.5, -0.0, 0.0):
        np.testing.assert_allclose(section(X, n, "times"), base * n, rtol=1e-6)
        np.testing.assert_allclose(section(X, n, text="plus"), base + n, rtol=1e-6)
    assert np.signbit(section(np.ones((1,), np.float32), -0.0, "times"))
    assert not np.signbit(section(np.ones((1,), np.float32), 0.0, "times")), (
        "0.0 == -0.0, but not the same program"
    )


def test_ragged_tensors():
    ragged = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    section = checkpoint(lambda r: r.with_values(tf.exp(tf.sin(r.values))))
    with tf.GradientTape() as tape:
        tape.watch(ragged.values)
        result = section(ragged)
        total = tf.reduce_sum(result.values)
    assert result.to_list() == tf.exp(tf.sin(ragged)).to_list()
    values = ragged.values.numpy()
    np.testing.assert_allclose(
        tape.gradient(total, ragged.values), np.exp(np.sin(values)) * np.cos(values), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_every_floating_type_has_gradients(dtype):
    x = tf.cast(tf.constant([0.5, 1.5]), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours, plain = checkpoint(lambda x: tf.exp(tf.sin(x)))(x), tf.exp(tf.sin(x))
    assert tape.gradient(ours, x).dtype == x.dtype
    np.testing.assert_array_equal(tape.gradient(ours, x), tape.gradient(plain, x))


@MODES
def test_variables_read_in_loops_branches_and_nested_functions(mode):
    v, w, u = tf.Variable(0.5), tf.Variable(1.5), tf.Variable(0.25)

    @tf.function
    def nested(y):
        return tf.sin(y * u)

    def function(x):
        y = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y * v)), (0, x), maximum_iterations=3
        )[1]
        y = tf.cond(tf.reduce_sum(tf.square(x)) > 0, lambda: tf.exp(y * w), lambda: y)
        return nested(y)

    ours = gradients(checkpoint(function), [X], [v, w, u], mode=mode)
    assert all(g is not None for g in ours.gradients)
    assert_same(ours, gradients(function, [X], [v, w, u], mode=mode), relative=1e-6)


def test_if_on_a_tensor_is_converted_as_under_tf_function():
    def function(x):
        if tf.reduce_sum(x) > 0:
            return tf.exp(tf.sin(x))
        return tf.sin(tf.exp(x))

    section = checkpoint(function)
    for x in (np.float32([1.0, 2.0]), np.float32([-1.0, -2.0])):
        np.testing.assert_allclose(section(x), function(tf.constant(x)), rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("size", [2, 1000], ids=["small", "large"])
def test_tensors_closed_over_get_their_gradients(graph, size):
    """TensorFlow inlines small eager tensors as constants and captures large ones."""

    def step(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            doubled = w * 2.0
            y = checkpoint(lambda x: tf.exp(tf.sin(x * doubled)))(tf.ones((size,)))
        return tape.gradient(y, w)

    w = tf.linspace(0.0, 1.0, size)
    gradient = (tf.function(step) if graph else step)(w)
    np.testing.assert_allclose(
        gradient, 2 * np.cos(2 * w) * np.exp(np.sin(2 * w)), rtol=2e-5, atol=1e-6
    )


@MODES
def test_state_happens_once(mode, capfd):
    """Batch statistics move once per call, a dropout mask is one mask, a print prints once."""
    norm, drop = keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dropout(0.5, seed=1)
    norm.build((None, 4))
    calls = tf.Variable(0)

    def function(x):
        calls.assign_add(1)
        if mode != "jit":  # XLA does not print
            tf.print("printed")
        return tf.exp(drop(norm(tf.sin(x) + 3.0, training=True), training=True))

    section = checkpoint(function)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = section(x)
            loss = tf.reduce_sum(tf.math.log(y) ** 2)
        return y, tape.gradient(loss, x)

    y, gradient = (step if mode == "eager" else tf.function(step, jit_compile=mode == "jit"))(
        tf.constant(X)
    )
    assert calls.numpy() == 1
    assert capfd.readouterr().err.count("printed") == (mode != "jit")
    np.testing.assert_allclose(norm.moving_mean, 0.1 * (np.sin(X) + 3.0).mean(axis=0), rtol=1e-5)
    assert 0 < np.count_nonzero(y != 1.0) < X.size
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("training", [True, False])
def test_training_reaches_a_layer_inside_a_layer(training):
    """Keras hands ``training`` from layer to layer beside the arguments: it must tell programs
    apart.
    """

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.5, seed=3)

        def call(self, x):
            return checkpoint(self.drop, policy=save_everything)(x)

    outer = Outer()
    for first in (training, not training):
        changed = np.any(outer(np.ones((4, 8), np.float32), training=first) == 0)
        assert changed == first


def test_a_mask_goes_through():
    seen = []

    class Look(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            seen.append(mask is not None)
            return tf.exp(tf.sin(x))

    embed = keras.layers.Embedding(5, 3, mask_zero=True)
    y = checkpoint(Look())(embed(np.array([[1, 0, 2]])))
    assert seen[-1]
    np.testing.assert_array_equal(y._keras_mask, [[True, False, True]])


def test_mixed_precision_casts_inside():
    dense = keras.layers.Dense(4, dtype="mixed_bfloat16")
    y = checkpoint(dense, policy=save_everything)(X)
    assert y.dtype == tf.bfloat16
    assert dense.kernel.dtype == "float32"


def test_the_forward_program_runs_once_and_the_backward_program_replays():
    """Counted by what really runs: a Python function called from inside the program."""
    runs = []

    def counted(x):
        return tf.numpy_function(lambda v: runs.append(1) or v, [x], tf.float32, stateful=False)

    @tf.custom_gradient
    def look(x):
        y = tf.ensure_shape(counted(x), x.shape)
        return y, lambda dy: dy

    section = checkpoint(lambda x: tf.exp(look(tf.sin(x))))
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        y = section(x)
    assert len(runs) == 1
    tape.gradient(y, x)
    assert len(runs) == 2
