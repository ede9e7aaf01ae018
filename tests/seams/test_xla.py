"""XLA's operations and records, and whether a graph is for them."""

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.protos import ConvolutionDimensionNumbers
from keras_recompute.seams.tensorflow.xla import (
    is_for_xla,
    xla_conv_v2,
    xla_dynamic_update_slice,
    xla_optimization_barrier,
    xla_pad,
)


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


@pytest.mark.parametrize("jit", [False, True])
def test_a_graph_and_those_inside_know_whether_xla_compiles_them(jit):
    seen = []

    def look(x):
        seen.append(is_for_xla(tf.compat.v1.get_default_graph()))
        return x

    tf.function(
        lambda x: tf.cond(x > 0, lambda: look(x), lambda: x), jit_compile=jit, autograph=False
    )(tf.constant(1.0))
    assert seen == [jit]


def test_pad():
    low, high, between = [1], [2], [0]
    made = compiled(
        lambda x: xla_pad(
            x, tf.constant(9.0), tf.constant(low), tf.constant(high), tf.constant(between)
        )
    )
    np.testing.assert_array_equal(made(tf.constant([1.0, 2.0])), [9, 1, 2, 9, 9])


def test_dynamic_update_slice():
    made = compiled(
        lambda x: xla_dynamic_update_slice(x, tf.constant([7.0, 8.0]), tf.constant([1]))
    )
    np.testing.assert_array_equal(made(tf.zeros(4)), [0, 7, 8, 0])


def test_nothing_is_merged_through_a_barrier():
    def twice(x):
        (copy,) = xla_optimization_barrier([x])
        return tf.math.erfc(x) * tf.math.erfc(copy)

    program = compiled(twice)
    np.testing.assert_allclose(program(tf.constant(0.5)), tf.math.erfc(0.5) ** 2, rtol=1e-6)
    assert "opt-barrier" in program.experimental_get_compiler_ir(tf.TensorSpec([]))(stage="hlo")


def test_convolution_in_a_layout_of_its_numbers():
    numbers = ConvolutionDimensionNumbers(input_feature_dimension=2, output_feature_dimension=2)
    numbers.input_spatial_dimensions.append(1)
    numbers.output_spatial_dimensions.append(1)
    numbers.kernel_spatial_dimensions.append(0)
    numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension = 1, 2

    def convolution(image, kernel):
        return xla_conv_v2(
            image,
            kernel,
            window_strides=tf.constant([1]),
            padding=tf.constant([[0, 0]]),
            lhs_dilation=tf.constant([1]),
            rhs_dilation=tf.constant([1]),
            feature_group_count=tf.constant(1),
            dimension_numbers=numbers.SerializeToString(),
            precision_config="",
            preferred_element_type=tf.float32,
            batch_group_count=1,
        )

    image, kernel = tf.reshape(tf.range(5.0), [1, 5, 1]), tf.reshape([1.0, 10.0], [2, 1, 1])
    np.testing.assert_array_equal(
        tf.squeeze(compiled(convolution)(image, kernel)), [10, 21, 32, 43]
    )
