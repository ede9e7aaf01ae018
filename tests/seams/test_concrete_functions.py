"""What a ``tf.function`` was traced into."""

import pytest
import tensorflow as tf

from keras_recompute.liveness.xla_messages import HloProto
from keras_recompute.seams.tensorflow.concrete_functions import (
    called_functions,
    fresh_function,
    is_compiled,
    traces,
    xla_compiler,
)


def test_a_function_says_whether_xla_compiles_it():
    assert is_compiled(tf.function(tf.sin, jit_compile=True))
    assert not is_compiled(tf.function(tf.sin))
    assert not is_compiled(tf.sin)


def test_traces_come_in_order():
    function = tf.function(tf.sin, autograph=False)
    assert traces(function) == []
    for size in (2, 3):
        function(tf.zeros(size))
    assert [concrete.inputs[0].shape.as_list() for concrete in traces(function)] == [[2], [3]]


def test_functions_of_a_graph_have_their_graphs():
    inner = tf.function(tf.sin, autograph=False)
    graph = tf.function(inner, autograph=False).get_concrete_function(tf.TensorSpec([])).graph
    kinds = [
        {op.type for op in function.graph.get_operations()}
        for function in called_functions(graph).values()
    ]
    assert any("Sin" in kind for kind in kinds)


def test_a_trace_is_compiled():
    concrete = tf.function(tf.sin, jit_compile=True, autograph=False).get_concrete_function(
        tf.TensorSpec([None])
    )
    serialized = xla_compiler(concrete, [tf.TensorSpec([4])])(
        stage="optimized_hlo_proto_serialized"
    )
    assert HloProto.FromString(serialized).hlo_module.name


@pytest.mark.parametrize("autograph", [True, False])
def test_a_function_is_taken_anew_for_xla_as_it_was_written(autograph):
    """Without the traces of the other, which were for another device, and with AutoGraph where that
    had it.
    """
    seen = []

    def doubled_if_positive(x):
        seen.append(None)
        if autograph:
            if tf.reduce_sum(x) > 0:
                x = 2 * x
            return x
        return 2 * x

    function = tf.function(doubled_if_positive, jit_compile=True, autograph=autograph)
    function(tf.constant([1.0]))
    other = fresh_function(function)
    assert (is_compiled(other), traces(other), len(seen)) == (True, [], 1)
    assert float(other(tf.constant([1.0]))[0]) == 2.0
    assert len(seen) == 2
    assert is_compiled(fresh_function(tf.sin))
