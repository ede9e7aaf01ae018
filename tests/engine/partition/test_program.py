"""The checker of programs finds what does not fit, and writing refuses values that do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.emit.higher_order import derivative
from keras_recompute.engine.partition.program import GraphProgram
from keras_recompute.engine.partition.program_slice import operations_between
from keras_recompute.engine.policies import save_everything, save_nothing
from keras_recompute.errors import InvalidProgramError
from tests.oracle import assert_all_close

from ..engine_vs_plain import operation_count, parted


@pytest.fixture
def program() -> GraphProgram:
    """The forward program of y = exp(sin(x)) * 2."""
    return parted(lambda x: tf.exp(tf.sin(x)) * 2.0, [tf.TensorSpec((3,))]).forward


def without(program: GraphProgram, kind: str) -> GraphProgram:
    return replace(program, operations=tuple(op for op in program.operations if op.type != kind))


def test_a_sound_program_is_returned(program):
    assert program.check() is program


def test_an_operation_left_out_is_missed_by_its_reader(program):
    with pytest.raises(InvalidProgramError, match=r"'Exp'.* reads 'Sin:0' before"):
        without(program, "Sin").check()


def test_operations_out_of_order(program):
    backwards = replace(program, operations=program.operations[::-1])
    with pytest.raises(InvalidProgramError, match="before an operation or input has made it"):
        backwards.check()


def test_an_operation_that_stands_twice(program):
    (sin,) = (op for op in program.operations if op.type == "Sin")
    with pytest.raises(InvalidProgramError, match="'Sin:0' is made twice"):
        replace(program, operations=(sin, *program.operations)).check()


def test_a_port_left_out(program):
    with pytest.raises(InvalidProgramError, match="'Sin' reads 'x:0'"):
        replace(program, ports=()).check()


def test_an_output_that_nothing_makes(program):
    with pytest.raises(
        InvalidProgramError, match="no operation of the program makes its output 'Exp:0'"
    ):
        replace(
            program, operations=(), outputs=(program.graph.get_tensor_by_name("Exp:0"),)
        ).check()


def test_an_output_that_is_an_input_needs_no_operation(program):
    (port,) = program.ports
    same = replace(program, operations=(), outputs=(port[0],)).check()

    @tf.function
    def run(x):
        return same.write([x])

    np.testing.assert_array_equal(run(tf.constant([1.0, 2.0, 3.0]))[0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "has 1 ports but was given 0 values"),
        ([tf.zeros(4)], r"'x:0' is float32\(3,\) but was given float32\(4,\)"),
        ([tf.zeros(3, tf.float64)], r"'x:0' is float32\(3,\) but was given float64\(3,\)"),
    ],
)
def test_values_that_do_not_fit(program, values, message):
    with tf.Graph().as_default(), pytest.raises(InvalidProgramError, match=message):
        program.write([tf.identity(v.numpy()) for v in values])


def test_a_value_given_from_outside_replaces_its_operation(program):
    """A port may stand in the middle of the graph: what leads to it is left out."""
    middle = program.graph.get_tensor_by_name("Sin:0")
    ports = ((middle,),)
    shorter = replace(
        program,
        ports=ports,
        operations=operations_between(program.outputs, ports, program.handles),
        _definition=[],
    ).check()
    assert [op.type for op in shorter.operations if op.type not in ("Const", "Identity")] == [
        "Exp",
        "Mul",
    ]

    @tf.function
    def run(s):
        return shorter.write([s])

    np.testing.assert_allclose(run(tf.zeros(3))[0], 2.0 * np.ones(3))


def test_a_program_brings_the_functions_that_it_calls_and_no_others():
    def function(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.sin(x)), (0, x))[
            1
        ] + tf.cos(x)

    def brought(program):
        with tf.Graph().as_default() as graph:
            program.write([tf.zeros(t.shape, t.dtype) for t, *_ in program.ports])
            return {f.signature.name for f in graph.as_graph_def().library.function}

    part = parted(function, [tf.TensorSpec((3,))], save_nothing)
    forward, backward = brought(part.forward), brought(part.backward)
    assert len(forward) == 2  # the condition and the body
    assert (
        set()
        < backward
        < {f.signature.name for f in part.joint.trace.graph.as_graph_def().library.function}
    )


def test_equal_constants_are_copied_once():
    """A traced function makes sizes and axes anew for every operation; in the end they are half of
    all operations.
    """

    def function(x):
        for _ in range(3):
            x = tf.reshape(tf.sin(x * 2.0), [-1]) + tf.constant(
                [1.0, 2.0]
            )  # both 2.0, -1 and [1, 2] three times
        return x, tf.constant([1.0, 2.0])

    part = parted(function, [tf.TensorSpec((2,))])

    @tf.function
    def run(x):
        return part.forward.write([x])

    concrete = run.get_concrete_function(tf.TensorSpec((2,)))
    assert sum(op.type == "Const" for op in part.forward.operations) == 10
    assert operation_count(concrete, "Const") == 3
    x = tf.constant([0.3, 0.7])
    assert_all_close(concrete(x), function(x), rtol=1e-6)


def test_an_input_that_tensorflow_has_rewritten_is_found_among_equal_constants():
    """It is then written with the number of the output, as the inputs of a loop are when it is
    differentiated.
    """
    part = parted(lambda x: tf.sin(x * 2.0) + tf.cos(x * 2.0), [tf.TensorSpec((2,))])
    for op in part.forward.operations:
        if op.type == "Mul":
            op._update_input(1, op.inputs[1])
    assert any(
        name.endswith(":0") for op in part.forward.operations for name in op.node_def.input
    ), "nothing was rewritten"
    x = tf.constant([0.3, 0.7])
    np.testing.assert_allclose(
        tf.function(part.forward.write)([x])[0], np.sin(2 * x) + np.cos(2 * x), rtol=1e-6
    )


def test_constants_that_differ_in_type_or_shape_are_not_equal():
    def function(x):
        return (
            tf.cast(x, tf.float64) * tf.constant(1, tf.float64)
            + tf.cast(x * 1.0, tf.float64)
            + tf.constant([1], tf.float64)
        )

    part = parted(function, [tf.TensorSpec((2,))])
    x = tf.constant([0.3, 0.7])
    run = tf.function(lambda x: part.forward.write([x])[0])
    np.testing.assert_array_equal(run(x), function(x))


def test_effects_are_part_of_the_forward_program_and_not_of_the_backward_one():
    def function(x):
        tf.print("seen")
        return tf.exp(x)

    part = parted(function, [tf.TensorSpec((3,))], save_nothing)
    assert "PrintV2" in [op.type for op in part.forward.operations]
    assert "PrintV2" not in [op.type for op in part.backward.operations]


def test_a_program_is_written_as_often_as_wanted(program):
    @tf.function
    def run(x):
        return program.write([x])[0] + program.write([x * 2.0])[0]

    concrete = run.get_concrete_function(tf.TensorSpec((3,)))
    assert operation_count(concrete, "Sin") == 2
    x = np.array([0.1, 0.2, 0.3], "float32")
    np.testing.assert_allclose(
        concrete(tf.constant(x)), 2 * np.exp(np.sin(x)) + 2 * np.exp(np.sin(2 * x)), rtol=1e-6
    )


def test_colocation_and_control_edges_to_what_stays_behind_are_dropped():
    v = tf.Variable(1.0)

    def function(x):
        with tf.control_dependencies([tf.debugging.assert_greater(x, -9.0), v.assign_add(1.0)]):
            y = tf.sin(x)
        return tf.exp(y) * tf.random.uniform((3,))

    part = parted(function, [tf.TensorSpec((3,))], save_everything)

    assert {t.op.type for t in part.saved} == {"Exp", "RandomUniform"}
    (sin,) = (op for op in part.forward.operations if op.type == "Sin")
    assert sin.control_inputs, "the function has no control edge: the test would prove nothing"

    @tf.function
    def run(x, dy):
        inputs = part.joint.trace.values([x])
        return part.backward.write([*inputs, *(tf.ones(t.shape) for t in part.saved), dy])

    run(tf.ones(3), tf.ones(3))
    assert v.numpy() == 1.0, "the backward program must not assign"


def test_control_edges_inside_the_program_are_kept():
    """The read stands after the assignment by a control edge alone."""
    v = tf.Variable(1.0)

    def function(x):
        v.assign(5.0)
        return x * v.read_value()

    part = parted(function, [tf.TensorSpec((3,))])

    @tf.function
    def run(x):
        return part.forward.write(part.joint.trace.values([x]))

    np.testing.assert_array_equal(run(tf.ones(3))[0], 5.0 * np.ones(3))


def test_a_branch_that_was_differentiated_is_copied_with_shapes_that_hold_for_each_side():
    """TensorFlow notes those of the first side: here the gradient of four gathered elements, beside
    that of three added.
    """

    def function(v, n):
        return tf.switch_case(
            n, [lambda: tf.reduce_sum(tf.gather(v, [0, 2, 1, 1]) ** 2), lambda: tf.reduce_sum(v**2)]
        )

    backward = derivative(
        parted(function, [tf.TensorSpec((3,)), tf.TensorSpec((), tf.int32)])
    ).backward
    with tf.Graph().as_default() as graph:
        backward.write([tf.compat.v1.placeholder(t.dtype, t.shape) for t, *_ in backward.ports])
    first = next(
        op
        for op in graph.get_operations()
        if op.name.endswith("gradients/switch_case/indexed_case_grad/gradient")
    )
    assert [t.shape.as_list() for t in first.outputs[:2]] == [[None], [None]]  # values and indices
