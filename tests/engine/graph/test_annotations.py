"""Marks: names for policies, and another way to compute a value again."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.graph.annotations import (
    alias_chain,
    annotated_name,
    checkpoint_name,
    is_alternative,
    replay_alternative,
)
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_names, save_nothing, save_replay_sources
from tests.oracle import numbers

from ..engine_vs_plain import assert_same, differentiate, parted, through_engine

X = numbers(3, 4)


def test_a_name_survives_scopes_and_is_no_other_identity():
    def function(x):
        with tf.name_scope("layer"):
            return checkpoint_name(x, "hidden"), tf.identity(x, name="hidden")

    traced = trace(function, [tf.TensorSpec((2,))], target_now())
    named, unnamed = (t.op.inputs[0] for t in traced.outputs)
    assert annotated_name(named) == "hidden"
    assert annotated_name(unnamed) is None


def test_a_name_changes_no_value_in_eager_code():
    np.testing.assert_array_equal(checkpoint_name(tf.constant(X), "x"), X)


def slow_and_cheap(calls):
    """exp(sin(x)) cos(x) with a gradient by hand that reads sin(x), for which there is another way
    if cos(x) is at hand.
    """

    @tf.custom_gradient
    def function(x):
        source = tf.cos(x)

        def again():
            calls.append("again")
            return [tf.sqrt(1.0 - source**2)]

        (value,) = replay_alternative([tf.sin(x)], again, given=[source])
        return tf.exp(value) * source, lambda dy: dy * tf.exp(value) * (source**2 - value)

    return function


SMALL = (np.abs(X) % 1.0 + 0.1).astype("float32")  # where sin(x) = sqrt(1 - cos(x) ** 2)


def test_a_marked_value_is_replayed_by_its_alternative_where_the_source_is_saved():
    part = parted(slow_and_cheap([]), [SMALL], save_replay_sources)
    assert [t.op.type for t in part.saved] == ["Cos"]
    assert "Sqrt" in [op.type for op in part.replayed]
    assert "Sin" not in [op.type for op in part.replayed]


def test_a_marked_value_is_replayed_plainly_where_the_source_is_not_at_hand():
    part = parted(slow_and_cheap([]), [SMALL], save_nothing)
    assert part.saved == ()
    replayed = [op.type for op in part.replayed]
    assert "Sin" in replayed
    assert "Sqrt" not in replayed


def test_a_marked_value_takes_the_alternative_where_the_source_is_an_output_at_hand():
    @tf.custom_gradient
    def function(x):
        source = tf.cos(x)
        (value,) = replay_alternative(
            [tf.sin(x)], lambda: [tf.sqrt(1.0 - source**2)], given=[source]
        )
        return (tf.exp(value), source), lambda dy, ds: dy * tf.exp(value) * source - ds * value

    part = parted(function, [SMALL], save_nothing, kept_by_caller=(1,))
    assert part.saved == ()
    replayed = [op.type for op in part.replayed]
    assert "Sqrt" in replayed
    assert "Sin" not in replayed


def test_both_ways_give_the_same_numbers():
    plain = differentiate(lambda x: tf.exp(tf.sin(x)) * tf.cos(x), [SMALL])
    for policy in (save_nothing, save_replay_sources):
        assert_same(
            differentiate(through_engine(slow_and_cheap([]), policy), [SMALL]), plain, relative=1e-5
        )


def test_nobody_computes_the_alternative_where_nothing_is_replayed():
    calls = []
    differentiate(slow_and_cheap(calls), [SMALL])
    assert calls == []


def test_the_forward_program_holds_no_alternative():
    part = parted(slow_and_cheap([]), [SMALL], save_replay_sources)
    kinds = [op.type for op in part.forward.operations]
    assert "Sqrt" not in kinds
    assert sum(is_alternative(op) for op in part.forward.operations) == 1


def test_equal_values_end_at_a_mark_that_may_be_another_number():
    def function(x):
        (value,) = replay_alternative([tf.sin(x)], lambda: [tf.sin(x)], given=[x])
        return tf.identity(checkpoint_name(value, "v"))

    traced = trace(function, [tf.TensorSpec((2,))], target_now())
    chain = alias_chain(traced.outputs[0])
    assert is_alternative(chain[-1].op)
    assert "v" in [annotated_name(t) for t in chain]


def test_names_pass_through_the_engine():
    def function(x):
        return tf.exp(checkpoint_name(tf.sin(x), "sine"))

    part = parted(function, [SMALL], save_names("sine"))
    assert len(part.saved) == 1
    assert "Sin" not in [op.type for op in part.replayed]


def test_a_choice_made_in_an_inner_program_stands_in_the_outer_one():
    """Copied, the mark reads one value only, and there is nothing left to choose."""
    inner = through_engine(slow_and_cheap([]), save_replay_sources)
    outer = through_engine(lambda x: tf.exp(inner(x)[0]), save_replay_sources)
    plain = differentiate(lambda x: tf.exp(tf.exp(tf.sin(x)) * tf.cos(x)), [SMALL])
    assert_same(differentiate(outer, [SMALL]), plain, relative=1e-5)
