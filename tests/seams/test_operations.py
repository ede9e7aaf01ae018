"""Operations of a graph under construction."""

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.operations import (
    COLOCATION,
    GRADIENT,
    ONLY_READ,
    SHAPES,
    copy_element_types,
    is_stateful,
    number_in_graph,
    redirect_readers,
    replace_input,
    type_is_stateful,
)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.usefixtures("graph")
def test_state_is_told_by_operation_and_by_type():
    assert is_stateful(tf.random.uniform([]).op)
    assert not is_stateful(tf.sin(tf.constant(1.0)).op)
    assert type_is_stateful("RandomUniform")
    assert not type_is_stateful("Sin")
    assert type_is_stateful("NobodysOperation")


@pytest.mark.usefixtures("graph")
def test_later_operations_have_greater_numbers():
    made = [tf.constant(1.0)]
    for _ in range(3):
        made.append(made[-1] + made[0])
    numbers = [number_in_graph(tensor.op) for tensor in made]
    assert numbers == sorted(set(numbers))


@pytest.mark.usefixtures("graph")
def test_an_operation_reads_another_tensor():
    one, two = tf.constant(1.0), tf.constant(2.0)
    total = tf.raw_ops.Sub(x=one, y=one)
    replace_input(total.op, 1, two)
    assert [t.name for t in total.op.inputs] == [one.name, two.name]
    with tf.compat.v1.Session() as session:
        assert session.run(total) == -1.0


@pytest.mark.usefixtures("graph")
def test_chosen_readers_read_another_tensor_wherever_they_read_the_first():
    one, two = tf.constant(1.0), tf.constant(2.0)
    square, untouched = tf.raw_ops.Mul(x=one, y=one), tf.raw_ops.Neg(x=one)
    redirect_readers(two, instead_of=one, readers=[square.op])
    assert [t.name for t in square.op.inputs] == [two.name, two.name]
    assert [t.name for t in untouched.op.inputs] == [one.name]


@pytest.mark.usefixtures("graph")
def test_a_copied_list_knows_the_types_of_its_elements():
    def element(of):
        return tf.raw_ops.TensorListGetItem(
            input_handle=of, index=0, element_shape=-1, element_dtype=tf.float32
        )

    known = tf.TensorArray(tf.float32, size=3, element_shape=[2]).flow
    copy = tf.raw_ops.Placeholder(dtype=tf.variant)
    assert element(copy).shape.rank is None
    copy_element_types(known, copy)
    assert element(copy).shape == [2]


def test_definitions_say_what_stands_beside_and_the_gradient(graph):
    one = tf.constant(1.0)
    with graph.colocate_with(one.op), graph.gradient_override_map({"Identity": "NobodysGradient"}):
        node = tf.identity(one).op.node_def
    assert node.attr[COLOCATION].list.s == [b"loc:@Const"]
    assert node.attr[GRADIENT].s == b"NobodysGradient"


def test_definitions_say_shapes_and_handles_that_are_only_read():
    variable = tf.Variable(1.0)
    read = tf.function(variable.read_value, autograph=False)
    graph = tf.function(read, autograph=False).get_concrete_function().graph
    (call,) = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert list(call.node_def.attr[ONLY_READ].list.i) == [0]
    definition = (
        tf.function(lambda x: x, autograph=False)
        .get_concrete_function(tf.TensorSpec([3]))
        .function_def
    )
    assert definition.arg_attr[0].attr[SHAPES].list.shape[0].dim[0].size == 3
