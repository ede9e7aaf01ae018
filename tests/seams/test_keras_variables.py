"""Keras's variables without values, on each backend."""

import keras
import pytest

from keras_recompute.seams.keras.variables import (
    has_value,
    has_values,
    only_compiling,
    run_on_shapes,
    without_values,
)

BACKEND = keras.config.backend()


def refuse(variable):
    raise LookupError(variable.name)


@pytest.fixture
def variable():
    with without_values(refuse):
        return keras.Variable("ones", (2, 3), "float32", name="weight")


def test_a_value_is_refused_where_it_is_read(variable):
    assert not has_value(variable)
    assert (tuple(variable.shape), variable.dtype) == ((2, 3), "float32")
    with pytest.raises(LookupError, match="weight"):
        keras.ops.sum(variable)


def test_shapes_are_inferred_without_it(variable):
    found = []
    run_on_shapes(lambda: found.append(keras.ops.matmul(variable, keras.ops.ones((3, 4))).shape))
    assert [tuple(shape) for shape in found] == [(2, 4)]
    inferred = keras.ops.matmul(keras.Input((2,)), keras.ops.transpose(keras.Input((2,))))
    assert inferred.shape == (None, None)


@pytest.mark.skipif(BACKEND != "jax", reason="jax.jit traces it")
def test_a_function_that_jax_traces_reads_none(variable):
    import jax

    # Else zeros would be part of its program, which take no memory.
    with pytest.raises(LookupError, match="weight"):
        jax.jit(lambda: keras.ops.sum(variable))()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's functions hold variables")
def test_a_function_that_is_compiled_reads_it(variable):
    import tensorflow as tf

    function = tf.function(lambda: keras.ops.sum(variable))
    with only_compiling():
        concrete = function.get_concrete_function()
    assert concrete.captured_inputs[0] is variable.value.handle


def test_a_variable_that_is_given_an_array_keeps_it():
    with without_values(refuse):
        assert has_value(keras.Variable([1.0, 2.0]))


def test_a_variable_that_is_made_while_shapes_are_inferred():
    with without_values(refuse), keras.StatelessScope():
        variable = keras.Variable("zeros", (2,))
    assert not has_value(variable)


def test_an_assigned_value_stays():
    with without_values(refuse):
        variable = keras.Variable("zeros", (2,))
    variable.assign([3.0, 4.0])
    assert has_value(variable)
    assert keras.ops.sum(variable) == 7


def test_behind_the_block_variables_have_values():
    with without_values(refuse):
        pass
    assert has_value(keras.Variable("zeros", (2,)))


def test_models_that_are_made_in_the_block_are_noted():
    made = []
    with without_values(refuse, made.append):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert made[0] is model
    assert not has_values(model)
    made.clear()
    keras.Sequential()
    assert made == []


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strategies are TensorFlow's")
def test_replicas_are_refused():
    import tensorflow as tf

    replicas = tf.distribute.MirroredStrategy(["CPU:0"]).scope()
    refused = pytest.raises(NotImplementedError, match=r"outside of strategy\.scope\(\)")
    with replicas, without_values(refuse), refused:
        keras.Variable("zeros", (2,))
