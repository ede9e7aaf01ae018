"""What is saved and what is replayed, exactly, with the arithmetic beside it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_recompute.engine.capture.joint_graph import join
from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.partition.partition import partition
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_everything, save_names, save_nothing
from tests.oracle import numbers

from ..engine_vs_plain import parted

W = tf.Variable(numbers(4, 8, seed=1), name="w")
V = tf.Variable(numbers(8, 2, seed=2), name="v")
X = tf.TensorSpec((16, 4))


def two_layers(x):
    """tanh(x w) v: the gradient reads tanh(x w) twice and nothing else that is not an input."""
    hidden = tf.tanh(checkpoint_name(tf.matmul(x, W), "product"))
    return tf.matmul(checkpoint_name(hidden, "hidden"), V)


def kinds(operations) -> list[str]:
    return sorted(op.type for op in operations)


def shapes(tensors) -> list[tuple[int, ...]]:
    return sorted(tuple(t.shape) for t in tensors)


def test_save_nothing_saves_nothing_and_replays_what_the_gradient_reads():
    part = parted(two_layers, [X], save_nothing)
    assert part.saved == ()
    # tanh(x w) takes the product, tanh and the two marks; the product with v is read by no
    # gradient.
    assert kinds(part.replayed) == ["Identity", "Identity", "MatMul", "Tanh"]


def test_save_everything_saves_only_what_the_gradient_reads():
    part = parted(two_layers, [X], save_everything)
    # Not x w and not the output: 16 * 8 elements of tanh, once, although its marked copy is read as
    # well.
    assert shapes(part.saved) == [(16, 8)]
    assert set(kinds(part.replayed)) <= {"Identity"}


@pytest.mark.parametrize(
    ("name", "saved", "replayed"),
    [
        ("product", [(16, 8)], ["Identity", "Tanh"]),
        ("hidden", [(16, 8)], []),  # the mark passes tanh on, so tanh itself is at hand too
        ("absent", [], ["Identity", "Identity", "MatMul", "Tanh"]),
    ],
)
def test_save_names_saves_the_named_value(name, saved, replayed):
    part = parted(two_layers, [X], save_names(name))
    assert shapes(part.saved) == saved
    assert kinds(part.replayed) == replayed


def test_an_output_at_hand_is_neither_saved_nor_replayed():
    def function(x):
        return tf.exp(x), tf.exp(x * 2.0)

    def reads(**kept_by_caller):
        part = parted(function, [X], **kept_by_caller)
        return kinds(part.replayed)

    # d exp(x) = exp(x) dy: without the outputs both are computed again, and the product below the
    # second.
    assert reads() == ["Exp", "Exp", "Mul"]
    assert reads(kept_by_caller=(0,)) == ["Exp", "Mul"]
    assert reads(kept_by_caller=(0, 1)) == []


def test_the_backward_program_takes_its_inputs_in_the_promised_order():
    part = parted(
        lambda x: (tf.exp(tf.matmul(x, W)), tf.cast(x > 0, tf.int32)),
        [X],
        save_everything,
        kept_by_caller=(0,),
    )
    trace_ports = part.joint.trace.ports
    # ports of the trace (x, w), saved values (none: exp is at hand), outputs at hand, gradients of
    # floating outputs
    assert [tuple(port[0].shape) for port in part.backward.ports] == [
        (16, 4),
        (4, 8),
        (16, 8),
        (16, 8),
    ]
    assert part.backward.ports[:2] == trace_ports
    assert part.joint.output_gradients[1] is None, "an integer has no gradient"
    assert len(part.backward.outputs) == 2


def test_impure_results_are_saved_whatever_the_policy_says():
    part = parted(lambda x: x * tf.random.uniform((16, 4)), [X], save_nothing)
    assert [t.op.type for t in part.saved] == ["RandomUniform"]
    assert shapes(part.saved) == [(16, 4)]


def test_an_impure_result_that_no_gradient_reads_is_not_saved():
    part = parted(lambda x: x + tf.random.uniform((16, 4)), [X], save_everything)
    assert part.saved == ()


def test_constants_are_neither_saved_nor_counted_as_replayed():
    part = parted(lambda x: x * tf.constant(numbers(16, 4)), [X], save_everything)
    assert part.saved == ()
    assert part.replayed == ()


def test_what_passes_an_input_on_is_not_saved():
    part = parted(lambda x: tf.sin(tf.identity(tf.identity(x))), [X], save_everything)
    assert part.saved == ()


def test_a_port_without_gradient_has_none():
    joint = join(
        trace(
            lambda x, ids: tf.gather(x, ids) * 2.0, [X, tf.TensorSpec((3,), tf.int32)], target_now()
        )
    )
    assert [g is None for g in joint.gradients] == [False, True]
    part = partition(joint, save_nothing)
    assert len(part.backward.outputs) == 1


def test_a_function_that_leads_to_no_gradient_has_an_empty_backward_program():
    part = parted(tf.stop_gradient, [X])
    assert part.backward.outputs == ()
    assert part.backward.operations == ()


def test_ports_come_as_arguments_variables_captures():
    outer = tf.constant(numbers(8))
    traced = trace(lambda x: tf.matmul(x, W) * outer + tf.matmul(x, W), [X], target_now())
    assert len(traced.arguments) == 1
    assert traced.variables == (W,)
    assert [c is outer for c in traced.captures] == [True]
    # The variable is read twice: two tensors and its handle, one value.
    assert [len(port) for port in traced.ports] == [1, 3, 1]
    values = traced.values([tf.zeros(X.shape)])
    assert [tuple(v.shape) for v in values] == [(16, 4), (4, 8), (8,)]


def test_an_assigned_variable_stands_for_no_tensor():
    counter = tf.Variable(0.0)
    traced = trace(
        lambda x: (counter.assign_add(1.0), x * counter.read_value())[1], [X], target_now()
    )
    assert traced.ports[1] == ()
    assert traced.purity.is_assigned(traced.handles[0][0])


def test_policies_are_values():
    assert save_names("a", "b") == save_names("b", "a")
    assert hash(save_names("a")) == hash(save_names("a"))
    assert save_names("a") != save_names("b")
    assert save_nothing != save_everything
