"""What works around a plain function works around a checkpointed one, as the suites of other
libraries ask.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.inspection import saved_residuals
from keras_recompute.engine.partition.scopes import keep_scope
from keras_recompute.engine.policies import (
    save_all_but_names,
    save_and_offload_names,
    save_everything,
    save_names,
)
from keras_recompute.errors import InvalidArgumentError, RecomputeError
from keras_recompute.layers.recomputation_checkpoint import RecomputationCheckpoint
from keras_recompute.models.classes.model import Model
from tests.oracle import gradient_step, in_mode

X = tf.constant([0.1, 0.2])
MODES = pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.long)]
)


def first(function):
    step = gradient_step(function, of_inputs=True, loss=tf.identity)
    return lambda x: step(x)[0]


def second(function):
    return first(first(function))


def keeping(x):
    with keep_scope():
        y = tf.sin(x)
    return tf.sin(tf.identity(tf.sin(y)))


def sines(x):
    return tf.sin(tf.sin(tf.sin(x)))


@pytest.mark.parametrize("function", [sines, keeping])
@pytest.mark.parametrize("shape", [(2,), (None,)], ids=str)
@MODES
def test_second_derivatives_with_an_unknown_dimension_and_with_a_scope(mode, shape, function):
    found = in_mode(mode, second(checkpoint(function)), input_signature=[tf.TensorSpec(shape)])(X)
    np.testing.assert_allclose(found, second(sines)(X), rtol=1e-5)


@MODES
def test_second_derivatives_through_two_convolutions(mode):
    layers = [keras.layers.Conv2D(n, 3, activation="tanh") for n in (4, 2)]
    network = keras.Sequential(layers)
    image = tf.random.stateless_uniform((2, 8, 8, 3), (0, 1))
    network(image)
    wanted = in_mode(mode, second(network))(image)
    np.testing.assert_allclose(
        in_mode(mode, second(checkpoint(network)))(image), wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:the gradient of .* is dense, and tf.IndexedSlices without")
@pytest.mark.filterwarnings("ignore:.*is created again")  # each case makes a function of one code
@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.long)])
@pytest.mark.parametrize("is_added_to", [False, True], ids=["alone", "in a sum"])
def test_second_derivatives_of_a_branch_whose_sides_gather_different_numbers_of_rows(
    mode, taken, is_added_to
):
    table = tf.Variable([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
    sides = [
        lambda x: tf.gather(tf.sin(x), [2, 0, 0]) * tf.sin(x),
        lambda x: tf.sin(x) * tf.reduce_mean(tf.gather(table, [3, 1]), axis=0),
        tf.tanh,
    ]

    def branch(x):
        y = tf.switch_case(tf.constant(taken), [lambda side=side: side(x) for side in sides])
        return y + tf.sin(x) if is_added_to else y

    def plain(x):
        return sides[taken](x) + tf.sin(x) if is_added_to else sides[taken](x)

    x = tf.constant([[0.1, 0.2], [0.3, 0.4], [0.6, 0.7]])
    found = in_mode(mode, second(checkpoint(branch)))(x)
    np.testing.assert_allclose(found, second(plain)(x), rtol=1e-5)


@pytest.mark.long
@MODES
def test_second_derivatives_of_attention(mode):
    layer = keras.layers.MultiHeadAttention(2, 2)
    x = tf.random.stateless_normal((2, 6, 4), (0, 1))
    layer(x, x)
    wanted = in_mode(mode, second(lambda x: layer(x, x)))(x)
    np.testing.assert_allclose(
        in_mode(mode, second(checkpoint(lambda x: layer(x, x))))(x), wanted, rtol=1e-4, atol=1e-5
    )


def test_second_derivatives_of_a_model_with_an_open_batch():
    inputs = x = keras.Input((4,))
    for _ in range(2):
        x = RecomputationCheckpoint()(keras.layers.Dense(4, activation="tanh")(x))
    outputs = keras.layers.Dense(1)(x)
    models = keras.Model(inputs, outputs), Model(inputs, outputs)
    found = [
        tf.function(
            second(lambda x, model=m: model(x, training=True)),
            input_signature=[tf.TensorSpec((None, 4))],
        )(tf.ones((3, 4)))
        for m in models
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


@MODES
def test_a_sparse_gradient_coming_in(mode):
    def function(x):
        return tf.reduce_sum(tf.gather(checkpoint(lambda t: tf.sin(tf.exp(t)))(x), [1, 0, 1]) ** 2)

    def plain(x):
        return tf.reduce_sum(tf.gather(tf.sin(tf.exp(x)), [1, 0, 1]) ** 2)

    wanted = tf.convert_to_tensor(first(plain)(X))
    np.testing.assert_allclose(in_mode(mode, first(function))(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(in_mode(mode, first(checkpoint(function)))(X), wanted, rtol=1e-5)


def test_a_second_derivative_of_a_loop_that_reads_a_variable_with_everything_saved():
    weight = tf.Variable(2.0)

    def looped(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.sin(y * weight)), (0, x))[
            1
        ]

    np.testing.assert_allclose(
        second(checkpoint(looped, policy=save_everything))(X), second(looped)(X), rtol=1e-5
    )


@pytest.mark.long
def test_a_batch_jacobian_of_a_fold():
    def folded(x):
        return tf.reshape(tf.foldl(lambda a, b: tf.cos(a + b), tf.transpose(x)), [1, 1])

    def jacobian(function):
        x = tf.constant([[1.0, 2.0]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.batch_jacobian(y, x)

    np.testing.assert_allclose(
        jacobian(checkpoint(folded)), jacobian(tf.function(folded)), rtol=1e-6
    )


@pytest.mark.parametrize(
    "decorate", [lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)]
)
def test_jacobians_in_every_mode(decorate):
    def jacobian(function, kind):
        def find(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return getattr(tape, kind)(y, x)

        return decorate(find)

    def function(x):
        return tf.exp(tf.sin(x))

    for kind, x in (("jacobian", X), ("batch_jacobian", tf.reshape(X, [1, 2]))):
        found = jacobian(checkpoint(function), kind)(x)
        np.testing.assert_allclose(found, jacobian(function, kind)(x), rtol=1e-5)


class OwnError(ValueError):
    """An error that is made by two arguments, so that AutoGraph cannot make one like it."""

    def __init__(self, what, why):
        super().__init__(what, why)


def test_the_error_that_a_function_raises():
    def failing(_):
        raise OwnError("what", "why")

    with pytest.raises(OwnError) as caught:
        checkpoint(failing)(X)
    assert caught.value.args == ("what", "why")

    def known(_):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        checkpoint(known)(X)


def misnamed(x):
    return checkpoint(tf.sin, policy=save_names("nope"))(x)


def in_fit(_):
    class Layer(keras.layers.Layer):
        def call(self, x):
            return misnamed(x)

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Layer()(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)


WAYS = {
    "eager": misnamed,
    "graph": tf.function(misnamed),
    "jit": tf.function(misnamed, jit_compile=True),
    "in a loop": tf.function(
        lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, misnamed(y)), (0, x))
    ),
    "in a map of tf.data": lambda x: list(tf.data.Dataset.from_tensors(x).map(misnamed)),
    "in fit": in_fit,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_errors_of_the_project_keep_their_class(way):
    with pytest.raises(InvalidArgumentError, match="names 'nope', but") as caught:
        WAYS[way](X)
    assert isinstance(caught.value, (RecomputeError, ValueError))


def test_the_errors_of_the_project_keep_their_class_in_a_thread():
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(WAYS[way], X) for way in ("eager", "graph")]:
            assert type(call.exception()) is InvalidArgumentError


@pytest.mark.parametrize("decorate", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_failing_operation_shows_the_line_of_the_user(decorate):
    def body(x):
        checked = tf.debugging.check_numerics(tf.math.log(x), "not a logarithm")  # this line
        return tf.exp(tf.exp(checked))

    with pytest.raises(tf.errors.InvalidArgumentError, match="not a logarithm") as caught:
        decorate(checkpoint(body))(tf.constant(-1.0))
    assert f'{__file__}", line {body.__code__.co_firstlineno + 1}, in body' in str(caught.value)


def test_a_lambda_layer_takes_a_checkpointed_layer():
    layer = keras.layers.Lambda(checkpoint(keras.layers.ReLU()))
    np.testing.assert_array_equal(layer(tf.constant([-1.0, 2.0])), [0, 2])


@pytest.mark.parametrize("name", ["my value", "a.b/c", "Größe", "half_1", "x.20.y", "named"])
def test_any_string_is_a_name(name):
    def function(x):
        return tf.exp(checkpoint_name(tf.sin(x), name))

    (row,) = [
        row
        for row in saved_residuals(checkpoint(function, policy=save_names(name)), X)
        if row.kind == "name"
    ]
    assert row.origin == name


def test_several_values_have_one_name():
    def function(x):
        for _ in range(3):
            x = tf.exp(checkpoint_name(tf.sin(x), "half"))
        return x

    rows = saved_residuals(checkpoint(function, policy=save_names("half")), X)
    assert [row.origin for row in rows] == ["x", "half", "half", "half"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: save_names(["a"]), r"save_names: \['a'\] is not a name. Give strings"),
        (lambda: save_names(""), "save_names: '' is not a name"),
        (lambda: save_all_but_names(3), "save_all_but_names: 3 is not a name"),
        (
            lambda: save_and_offload_names(save="half"),
            r"save='half'\): a string is not a tuple of names. Give save=\('half',\)",
        ),
        (
            lambda: save_and_offload_names(offload="half"),
            r"offload='half'\): a string is not a tuple of names",
        ),
        (
            lambda: save_and_offload_names(save=("y", "z"), offload=("y",)),
            "'y' is named in both save and offload",
        ),
        (lambda: checkpoint_name(X, None), r"checkpoint_name\(value, None\): give a name"),
        (lambda: checkpoint_name(X, ""), r"checkpoint_name\(value, ''\): give a name"),
    ],
)
def test_what_is_no_name_is_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
