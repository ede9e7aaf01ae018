"""Variables of TensorFlow without values, and functions of them that XLA compiles."""

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.valueless_variables import (
    ValuelessVariable,
    graph_not_to_run,
    lend_values,
    only_compiling,
)


def refuse():
    raise LookupError("no value")


def variable(shape=(3, 4), dtype="float32"):
    return ValuelessVariable(refuse, shape=shape, dtype=dtype, name="weight")


@pytest.mark.parametrize(
    "read",
    [
        lambda v: v + 1.0,
        lambda v: v.numpy(),
        lambda v: tf.gather(v, [0]),
        lambda v: v.assign_add(tf.ones((3, 4))),
        lambda v: v.assign_sub(tf.ones((3, 4))),
        lambda v: tf.function(lambda: v + 1.0)(),
    ],
)
def test_reading_is_refused(read):
    with pytest.raises(LookupError, match="no value"):
        read(variable())


def test_an_assigned_value_is_read():
    found = variable()
    assert found.lacks_value
    found.assign(tf.ones((3, 4)))
    assert not found.lacks_value
    assert tf.reduce_sum(found).numpy() == 12


def test_a_graph_that_does_not_run_may_read():
    found = variable()
    with graph_not_to_run():
        assert (found + 1.0).shape == (3, 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64", "bool"])
def test_xla_compiles_a_function_as_of_variables_with_values(dtype):
    def compiled(*variables):
        function = tf.function(lambda: [tf.identity(v) for v in variables], jit_compile=True)
        with only_compiling():
            concrete = function.get_concrete_function()
        captured = concrete.captured_inputs
        with lend_values(concrete):
            text = function.experimental_get_compiler_ir()(stage="hlo")
        assert concrete.captured_inputs == captured
        return text[text.index("ENTRY") :].partition("{")[2]

    shapes = [(3, 4), (2,), ()]
    expected = compiled(*(tf.Variable(tf.zeros(shape, dtype)) for shape in shapes))
    found = [variable(shape, dtype) for shape in shapes]
    assert compiled(*found) == expected
    assert all(each.lacks_value for each in found)
