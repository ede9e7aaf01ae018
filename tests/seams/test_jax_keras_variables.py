"""Keras's variables without values, on Keras's JAX backend."""

import keras
import pytest

jax = pytest.importorskip("jax")

if keras.config.backend() != "jax":
    pytest.skip("variables without values are JAX's", allow_module_level=True)

from keras_recompute.seams.keras.variables import has_value, without_values  # noqa: E402


def refuse(variable):
    raise LookupError(variable.name)


def test_a_value_is_zero_in_traces_and_refused_elsewhere():
    with without_values(refuse):
        variable = keras.Variable("ones", (2, 3), "float32", name="weight")
    assert not has_value(variable)
    assert (variable.shape, variable.dtype) == ((2, 3), "float32")
    assert jax.jit(lambda: keras.ops.sum(variable))() == 0
    with pytest.raises(LookupError, match="weight"):
        keras.ops.sum(variable)


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
