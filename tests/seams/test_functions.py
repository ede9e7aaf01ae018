"""Functions that operations call."""

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.functions import (
    NOT_WRAPPED,
    add_function,
    definition_in_process,
    function_in,
    function_of,
)

NAME = "made_of_a_definition"


@pytest.fixture
def caller():
    """The graph of a function with one call, and the name of what it calls."""
    inner = tf.function(tf.sin, autograph=False)
    graph = tf.function(inner, autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    (call,) = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
    return graph, call.get_attr("f").name


def renamed(graph, name, new_name):
    definition = type(function_in(graph, name).definition).FromString(function_in(graph, name).definition.SerializeToString())
    definition.signature.name = new_name
    return definition


def test_a_function_is_found_in_the_graph_by_name(caller):
    graph, name = caller
    found = function_in(graph, name)
    assert [node.op for node in found.definition.node_def if node.op == "Sin"] == ["Sin"]
    assert list(found.children) == []
    assert function_in(graph, "nobody") is None


def test_a_definition_is_found_without_its_graph(caller):
    _, name = caller
    assert "Sin" in [node.op for node in definition_in_process(name).node_def]
    assert definition_in_process("nobody") is None


def test_a_function_is_made_of_a_definition_and_called(caller):
    graph, name = caller
    made = function_of(renamed(graph, name, NAME), [])

    @tf.function(autograph=False)
    def calls_it(x):
        here = tf.compat.v1.get_default_graph()
        add_function(here, made)
        assert function_in(here, NAME) is not None
        (y,) = tf.raw_ops.PartitionedCall(args=[x], Tout=[tf.float32], f=NAME)
        return y

    assert calls_it(tf.constant(1.0)) == tf.sin(1.0)


def test_a_function_leaves_the_process_when_it_is_dropped(caller):
    graph, name = caller
    made = function_of(renamed(graph, name, "soon_dropped"), [])
    assert definition_in_process("soon_dropped") is not None
    del made
    assert definition_in_process("soon_dropped") is None


@pytest.mark.parametrize(("name", "is_wrapped"), [("any", True), (NOT_WRAPPED, False)])
def test_by_its_name_a_function_keeps_its_branches_under_nested_tapes(name, is_wrapped):
    x = tf.Variable(1.0)

    def branching(positive):
        return tf.cond(positive, lambda: x + 1, lambda: x - 1)

    branching.__name__ = name
    with tf.GradientTape(), tf.GradientTape():
        graph = tf.function(branching, autograph=False).get_concrete_function(tf.TensorSpec([], tf.bool)).graph
    assert any("PartitionedCall" in op.type for op in graph.get_operations()) == is_wrapped
