"""Blocks that repeat themselves inside a section, or in a model without checkpoints, become a loop
with ``scan_layers``.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from keras_recompute.models.keras_graph.call_graph import read_graph
from keras_recompute.models.keras_graph.repeated_blocks import inner_loops
from keras_recompute.models.keras_graph.section_loops import SectionLoop

from .test_scan_layers import JIT, X, assert_equal_to_plain, block, loss_and_gradients, made


def model_of(
    blocks,
    checkpoint_after=(),
    *,
    scan=True,
    one_block=block,
    kind=kr.Model,
    before=None,
    after=None,
):
    x = inputs = keras.Input(X.shape[1:], batch_size=len(X))
    x = before(x) if before else x
    for number in range(blocks):
        x = one_block(x)
        if number in checkpoint_after:
            x = kr.RecomputationCheckpoint()(x)
    return made(kind, inputs, after(x) if after else x, scan)


def steps_of(model):
    """Return the lengths of what a model consists of: (turns, calls) of a loop, calls of what
    stands alone.
    """
    found = inner_loops(read_graph(model))
    return [
        (len(s.sections), len(s.calls)) if isinstance(s, SectionLoop) else len(s.calls)
        for s in found
    ]


def test_the_longest_repetition_is_found_and_cut_where_one_value_crosses():
    assert steps_of(model_of(4)) == [(4, 4)]
    assert steps_of(model_of(3, before=keras.layers.Dense(4), after=keras.layers.Dense(4))) == [
        1,
        (3, 4),
        1,
    ]
    # Adding something in front of the blocks looks like the end of a block, behind which two values
    # cross.
    assert steps_of(
        model_of(3, before=lambda x: keras.layers.Add()([x, x]), one_block=pre_normalised)
    ) == [1, (3, 4)]
    assert steps_of(model_of(1)) == []


def pre_normalised(x):
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(8, activation="gelu")(y)
    return keras.layers.Add()([x, keras.layers.Dense(4)(y)])


def test_what_differs_or_changes_variables_does_not_repeat():
    sizes = iter((5, 6, 7))
    assert (
        steps_of(
            model_of(
                3, one_block=lambda x: keras.layers.Dense(4)(keras.layers.Dense(next(sizes))(x))
            )
        )
        == []
    )
    assert (
        steps_of(
            model_of(3, one_block=lambda x: keras.layers.Dropout(0.5)(keras.layers.Dense(4)(x)))
        )
        == []
    )


def test_two_kinds_of_blocks_become_two_loops():
    x = inputs = keras.Input(X.shape[1:], batch_size=len(X))
    for _ in range(3):
        x = block(x)
    for _ in range(2):
        x = pre_normalised(x)
    assert steps_of(kr.Model(inputs, x)) == [(3, 4), (2, 4)]


@JIT
@pytest.mark.parametrize(
    "checkpoint_after",
    [(), pytest.param((1, 3), marks=pytest.mark.long), (2,)],
    ids=["no checkpoints", "two", "one"],
)
@pytest.mark.parametrize("one_block", [pytest.param(block, marks=pytest.mark.long), pre_normalised])
def test_gradients_are_those_of_the_plain_model(checkpoint_after, one_block, jit):
    model = model_of(6, checkpoint_after, one_block=one_block)
    assert any(step.inner_steps for step in model.plan.steps)
    assert_equal_to_plain(model, model_of(6, one_block=one_block, kind=keras.Model), jit)


@pytest.mark.long
def test_masks_go_through_blocks_that_could_be_a_loop():
    def with_mask(kind):
        return model_of(3, kind=kind, before=keras.layers.Masking())

    assert_equal_to_plain(with_mask(kr.Model), with_mask(keras.Model), jit=True)


@pytest.mark.long
def test_a_value_without_dimensions_may_cross_into_a_section():
    def with_total(kind):
        def scaled(x):
            x = keras.layers.Dense(4)(x)
            total = keras.ops.tanh(keras.ops.sum(x))
            if kind is kr.Model:
                total, x = kr.RecomputationCheckpoint()([total, x])
            return pre_normalised(total * x)

        return model_of(3, kind=kind, before=scaled)

    assert_equal_to_plain(with_total(kr.Model), with_total(keras.Model), jit=True)


@pytest.mark.long
def test_a_step_keeps_no_more_and_its_program_does_not_grow_with_the_blocks():
    def program(blocks, scan):
        model = model_of(blocks, scan=scan)
        return profile(lambda x: loss_and_gradients(model, x), tf.TensorSpec(X.shape))

    # Each block more has weights to be read and gradients to be handed out, a few instructions
    # each.
    per_block, plain_per_block = (
        (program(5, scan).program_instructions - program(3, scan).program_instructions) / 2
        for scan in (True, False)
    )
    assert per_block < plain_per_block / 2, (per_block, plain_per_block)


def test_inference_and_models_without_scan_layers_are_plain():
    model = model_of(4)
    plain = model_of(4, kind=keras.Model)
    np.testing.assert_allclose(model(X), plain(X), rtol=1e-6)
    model.scan_layers = False
    assert model.plan.is_plain
    assert not any(step.inner_steps for step in model.plan.steps)
