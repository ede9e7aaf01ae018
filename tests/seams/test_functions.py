"""Functions that operations call."""

import math

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.functions import (
    NOT_WRAPPED,
    add_function,
    find_function,
    inline_jit_calls,
    make_function,
    register_by_name,
    registered_definition,
    without_control_dependencies,
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
    definition = type(find_function(graph, name).definition).FromString(
        find_function(graph, name).definition.SerializeToString()
    )
    definition.signature.name = new_name
    return definition


def test_a_function_is_found_in_the_graph_by_name(caller):
    graph, name = caller
    found = find_function(graph, name)
    assert [node.op for node in found.definition.node_def if node.op == "Sin"] == ["Sin"]
    assert list(found.children) == []
    assert find_function(graph, "nobody") is None


def test_a_definition_is_found_without_its_graph(caller):
    _, name = caller
    assert "Sin" in [node.op for node in registered_definition(name).node_def]
    assert registered_definition("nobody") is None


def test_a_function_is_made_of_a_definition_and_called(caller):
    graph, name = caller
    made = make_function(renamed(graph, name, NAME), [])

    @tf.function(autograph=False)
    def calls_it(x):
        here = tf.compat.v1.get_default_graph()
        add_function(here, made)
        assert find_function(here, NAME) is not None
        (y,) = tf.raw_ops.PartitionedCall(args=[x], Tout=[tf.float32], f=NAME)
        return y

    assert calls_it(tf.constant(1.0)) == tf.sin(1.0)


def test_a_function_leaves_the_process_when_it_is_dropped(caller):
    graph, name = caller
    made = make_function(renamed(graph, name, "soon_dropped"), [])
    assert registered_definition("soon_dropped") is not None
    del made
    assert registered_definition("soon_dropped") is None


@pytest.mark.parametrize(("name", "is_wrapped"), [("any", True), (NOT_WRAPPED, False)])
def test_by_its_name_a_function_keeps_its_branches_under_nested_tapes(name, is_wrapped):
    x = tf.Variable(1.0)

    def branching(positive):
        return tf.cond(positive, lambda: x + 1, lambda: x - 1)

    branching.__name__ = name
    with tf.GradientTape(), tf.GradientTape():
        graph = (
            tf.function(branching, autograph=False)
            .get_concrete_function(tf.TensorSpec([], tf.bool))
            .graph
        )
    assert any("PartitionedCall" in op.type for op in graph.get_operations()) == is_wrapped


def traced_with_a_call(*, jit, assigns=False):
    """Return a graph, traced with compiled calls written out, that calls a function, which has a
    loop, and its gradient.
    """
    variable = tf.Variable(2.0)

    @tf.function(jit_compile=jit)
    def called(x):
        if assigns:
            variable.assign_add(1.0)
        return (
            variable
            * tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 3.0), (0, tf.sin(x)))[1]
        )

    @tf.function
    def outer(x):
        with inline_jit_calls():
            y = called(x)
        return y, *tf.gradients(y, [x])

    return outer.get_concrete_function(tf.TensorSpec(())), outer


def calls_in(graph):
    return [op.type for op in graph.get_operations() if op.type.endswith("PartitionedCall")]


def test_a_compiled_function_is_written_out():
    concrete, outer = traced_with_a_call(jit=True)
    assert calls_in(concrete.graph) == []
    assert [float(t) for t in outer(tf.constant(0.0))] == [0.0, 18.0]  # of 2 * (sin(x) * 3 * 3)


@pytest.mark.parametrize(
    "options", [{"jit": None}, {"jit": True, "assigns": True}], ids=["not compiled", "with state"]
)
def test_any_other_is_called(options):
    concrete, _ = traced_with_a_call(**options)
    assert len(calls_in(concrete.graph)) == 2  # forward and backward


def test_what_is_written_out_leaves_nothing_of_the_call():
    """A placeholder in a branch cannot be compiled, though nobody reads it; one that is returned is
    the argument.
    """
    called = tf.function(
        lambda x, _: (tf.sin(x), x, tf.constant(2.0)), jit_compile=True, autograph=False
    )

    @tf.function(jit_compile=True, autograph=False)
    def outer(x):
        with inline_jit_calls():
            return tf.cond(x > 0, lambda: called(x, 2 * x), lambda: (x, x, x))

    assert [float(t) for t in outer(tf.constant(0.5))] == pytest.approx([math.sin(0.5), 0.5, 2.0])
    branch = (
        outer.get_concrete_function(tf.TensorSpec(()))
        .graph.get_operation_by_name("cond")
        .get_attr("then_branch")
        .name
    )
    inside = find_function(outer.get_concrete_function(tf.TensorSpec(())).graph, branch).definition
    assert "Placeholder" not in [node.op for node in inside.node_def]


def test_outside_a_compiled_function_is_called():
    with inline_jit_calls():
        pass
    called = tf.function(tf.sin, jit_compile=True)
    graph = tf.function(called).get_concrete_function(tf.TensorSpec(())).graph
    assert len(calls_in(graph)) == 1


@pytest.mark.parametrize("is_called", [False, True])
def test_operations_of_a_compiled_function_are_replaced_as_it_is_written_out(is_called):
    """Its sines are written as cosines, or it is called."""

    def as_cosine(node):
        return [type(node)(name=node.name, op="Cos", input=node.input, attr=node.attr)]

    def rewrite(graph):
        sines = [op.name for op in graph.get_operations() if op.type == "Sin"]
        return None if is_called else dict.fromkeys(sines, as_cosine)

    called = tf.function(lambda x: 2 * tf.sin(x), jit_compile=True, autograph=False)

    @tf.function(autograph=False)
    def outer(x):
        with inline_jit_calls(rewrite):
            return called(x)

    assert float(outer(tf.constant(0.5))) == pytest.approx(
        2 * (math.sin(0.5) if is_called else math.cos(0.5))
    )
    assert len(calls_in(outer.get_concrete_function(tf.TensorSpec(())).graph)) == is_called


@pytest.mark.parametrize("jit", [False, True])
def test_a_graph_without_copies_calls_what_it_knows_by_name(jit):
    inner = tf.function(tf.sin, autograph=False)

    def made(by_name):
        @tf.function(autograph=False, jit_compile=jit)
        def outer(x):
            if by_name:
                register_by_name(tf.compat.v1.get_default_graph())
            with tf.GradientTape() as tape:
                tape.watch(x)
                (y,) = tf.while_loop(
                    lambda v: v < 2.0, lambda v: [inner(v) + v], [x], maximum_iterations=8
                )
            return y, tape.gradient(y, x)

        return outer, outer.get_concrete_function(tf.TensorSpec([])).graph

    (outer, graph), (plain, with_copies) = made(by_name=True), made(by_name=False)
    x = tf.constant(0.5)
    assert [float(t) for t in outer(x)] == [float(t) for t in plain(x)]
    assert float(outer(x)[0]) > 2.0
    assert copies_in(with_copies) > 4  # bodies and conditions of two loops, and what they call
    assert copies_in(graph) == 0
    for loop in [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]:
        body = find_function(graph, loop.get_attr("body").name)
        assert (
            [find_function(graph, child.name.decode()) for child in body.children]
            == list(body.children)
            != []
        )

    for _ in range(2):  # asked for, the copies are made once
        assert len(graph.as_graph_def().library.function) == copies_in(with_copies)
    assert copies_in(graph) == copies_in(with_copies)


def copies_in(graph):
    definition, _ = tf.Graph._as_graph_def(graph)
    return len(definition.library.function)


def test_a_graph_that_is_no_functions_keeps_its_copies():
    with tf.Graph().as_default() as graph:  # a session runs it
        register_by_name(graph)
        tf.function(tf.sin, autograph=False)(tf.zeros([]))
    assert copies_in(graph) == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_branch_is_written_with_or_without_order(ordered):
    graphs = []

    def branch():
        graphs.append(tf.compat.v1.get_default_graph())
        tf.print("one")
        tf.print("two")
        return tf.constant(1.0)

    @tf.function(autograph=False)
    def function(x):
        if ordered:
            return tf.cond(x > 0.0, branch, lambda: x)
        with without_control_dependencies():
            return tf.cond(x > 0.0, branch, lambda: x)

    function.get_concrete_function(tf.TensorSpec([]))
    _, second = [op for op in graphs[0].get_operations() if op.type == "PrintV2"]
    assert len(second.control_inputs) == ordered
