"""A pipeline's memory with its turns in sequence, as in Graphcore's published images."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.ipu.models.unfolded import unfolded
from keras_recompute.liveness import compile_program
from keras_recompute.op_names import FORWARD

from .pipeline_oracle import ORDERS
from .pipelines import pipelined_lstm

pytestmark = pytest.mark.usefixtures("graphcore_names")
FLOAT = 4


def compiled(**options):
    model, specs = pipelined_lstm(**options)
    return model, compile_program(
        model.execution, model.feed_signature(specs), input_feed=["feed"], layers_of=model
    )


def passes(program):
    """Return (pass, its largest bytes) for all passes of a stage, such as ("F0", 1024).

    They are in the order of the steps.
    """
    steps = [step for step in program.steps if step.section]

    def name(step):  # the sections between checkpoints are stage 0's
        return f"{'F' if step.phase == FORWARD else 'B'}{1 if step.section == 'stage-1' else 0}"

    return [
        (key, max(step.not_always_live_bytes for step in run)) for key, run in groupby(steps, name)
    ]


@pytest.mark.long
def test_four_forward_and_four_backward_humps_in_the_order_of_grouped():
    model, program = compiled(checkpoints=2, schedule="Grouped", length=96, units=8)
    in_a_row = unfolded(model, program)
    documented = [action[:2] for action in ORDERS["Grouped"].replace("|", "").split()]
    assert [name for name, _ in passes(in_a_row)] == documented
    forward, backward = (
        {held for name, held in passes(in_a_row) if name == kind} for kind in ("F0", "B0")
    )
    between = max(held for name, held in passes(in_a_row) if name.endswith("1"))
    assert len(forward) == len(backward) == 1, "every microbatch holds the same"
    assert between < forward.pop() < backward.pop()

    folded = program.program()
    assert folded.peak_bytes == in_a_row.peak_bytes
    assert folded.always_live_bytes == in_a_row.always_live_bytes
    assert folded.input_feed_bytes == in_a_row.input_feed_bytes
    # Each step holds what it holds in the program, and the same storage.
    number_of = {step.instruction: number for number, step in enumerate(folded.steps)}
    for place in range(0, in_a_row.program_steps, 7):
        number = number_of[in_a_row.steps[place].instruction]
        assert (
            in_a_row.steps[place].not_always_live_bytes
            == folded.steps[number].not_always_live_bytes
        )
        assert sorted(b.name for b in in_a_row.live_at(place)) == sorted(
            b.name for b in folded.live_at(number)
        )


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["Grouped", "Sequential"])
def test_the_order_is_the_one_that_the_program_itself_noted(schedule):
    model, program = compiled(checkpoints=1, schedule=schedule)
    (x, y) = (
        np.ones((8, *spec.shape[1:]), "float32")
        for spec in pipelined_lstm(checkpoints=1, schedule=schedule)[1]
    )
    model.fit(x, y, batch_size=2, verbose=0)
    assert [name for name, _ in passes(unfolded(model, program))] == [
        str(a)[:2] for a in model.training_record.order
    ]


@pytest.mark.long
def test_the_peaks_are_those_of_three_microbatches_and_one_section():
    """The stash has the input of three microbatches.

    One sequence is on its way: to stage 1, in it, and back.
    """
    length, features, units, batch = 512, 16, 8, 4
    peaks = {}
    for checkpoints in (0, 7):
        model, program = compiled(
            checkpoints=checkpoints,
            schedule="Grouped",
            length=length,
            features=features,
            units=units,
            batch=batch,
        )
        peaks[checkpoints] = unfolded(model, program).peak_bytes / (batch * length * FLOAT)
    waiting = 3 * features + 3 * units
    # Of the section that is replayed: input, gates or their gradients, and outputs and cell states.
    section = features + 4 * units + 2 * units
    # The inputs are copied behind the loop, where the gradients of the gates multiply them. By then
    # the loop has read the gradient of the outputs.
    section += features
    assert peaks[0] == pytest.approx(waiting + section, rel=0.02)
    # With eight sections the gradient of all outputs is there, since XLA's own scheduler makes it
    # early.
    assert peaks[7] == pytest.approx(waiting + units + section / 8, rel=0.06)


@pytest.mark.long
def test_another_program_is_refused():
    model, _ = compiled(checkpoints=1, schedule="Grouped")
    longer, program = compiled(checkpoints=1, schedule="Sequential")
    with pytest.raises(ReportError, match="has 4 iterations, not 7"):
        unfolded(model, program)
    untraced, _ = pipelined_lstm(checkpoints=1, schedule="Grouped")
    with pytest.raises(InvalidArgumentError, match="not a pipeline that was compiled"):
        unfolded(untraced, program)
    import tensorflow as tf

    with pytest.raises(ReportError, match="no loop of the program branches"):
        unfolded(longer, compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((4, 4))))
