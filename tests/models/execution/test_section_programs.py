"""The compiled programs of sections: their size, their memory and their names."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_recompute.layers.recurrent import GRU, LSTM
from keras_recompute.layers.time_slice import TimeSlice
from keras_recompute.liveness import profile
from keras_recompute.liveness.program import held_per_step
from keras_recompute.models.classes.model import Model
from tests.oracle import gradient_step, mean_square

from ..networks import FEATURES, UNITS, mark, recurrent


@pytest.fixture(scope="module")
def compiled():
    """Programs of one training step over 64 steps, for several numbers of checkpoints."""
    return {
        checkpoints: profile(
            gradient_step(recurrent(Model, checkpoints, length=64), loss=mean_square),
            tf.TensorSpec((16, 64, FEATURES)),
            input_feed=["x"],
        )
        for checkpoints in (0, 3, 7)
    }


@pytest.mark.long
def test_the_program_does_not_grow_with_the_number_of_checkpoints(compiled):
    """Sections are one loop. What is ordered in it depends on sizes, a few instructions; one
    section more would be hundreds.
    """
    assert compiled[3].program_instructions is not None
    assert compiled[7].program_instructions == pytest.approx(
        compiled[3].program_instructions, rel=0.03
    )
    assert compiled[3].program_steps == compiled[7].program_steps


def temporary_bytes(inputs, outputs):
    step = gradient_step(Model(inputs, outputs), loss=mean_square)
    program = profile(step, tf.TensorSpec(inputs.shape), input_feed=["x"])
    return max(held_per_step(program.buffers, ("temporary",), program.program_steps))


def test_behind_the_last_checkpoint_what_was_read_is_freed():
    """A branch would hold all that it is given until it ends."""
    inputs = keras.Input((16,), batch_size=2048)
    x = mark(keras.layers.Dense(16, "tanh")(inputs))
    for units in (64, *16 * [16]):
        x = keras.layers.Dense(units, "tanh")(x)
    # The state at the checkpoint, sixteen small arrays, a large one; one more while the loss is
    # computed. When the large layer is differentiated, with the most in hand, the small ones are
    # gone.
    small, large = 2048 * 16 * 4, 2048 * 64 * 4
    assert temporary_bytes(inputs, x) <= small + 16 * small + large + small


@pytest.mark.long
def test_behind_the_last_checkpoint_gradients_are_not_held_beside_copies_of_them():
    """XLA transposes gradients of kernels, and would do that last, when it hands them out, and hold
    both arrays until then.
    """
    inputs = x = keras.Input((4, 4, 64), batch_size=2)
    for number in range(6):
        x = keras.layers.Conv2D(64, 3, padding="same", activation="relu")(
            mark(x) if number == 1 else x
        )
    model = Model(inputs, x)
    model.compile("sgd", "mse", jit_compile=True)
    program = profile(model, tf.TensorSpec(inputs.shape), tf.TensorSpec(x.shape))
    # The gradients of the five layers wait for the section's end, and one is beside its transposed
    # copy. All arrays of the pass together take less than half a kernel.
    kernel = 3 * 3 * 64 * 64 * 4
    assert program.allocated_temporary_bytes <= (5 + 1 + 0.5) * kernel


@pytest.mark.long
def test_the_memory_falls_with_the_number_of_checkpoints(compiled):
    peaks = {k: program.not_always_live_peak_bytes for k, program in compiled.items()}
    # Gates, cells and outputs of 64 steps: 64 * 16 * (4 + 1 + 1) * 4 elements of 4 bytes; a quarter
    # of it in 4 sections.
    activations = 64 * 16 * 6 * UNITS * 4
    assert peaks[0] >= activations * 0.8
    assert peaks[3] < 0.7 * peaks[0], peaks
    assert peaks[7] < peaks[3], peaks


@pytest.mark.long
def test_sections_have_their_names_in_the_compiled_program(compiled):
    named = {(step.phase, step.section) for step in compiled[7].steps if step.section}
    assert {
        ("forward", "sections-0-6"),
        ("recompute", "sections-0-6"),
        ("backward", "sections-0-6"),
    } <= named


@pytest.mark.parametrize(
    ("cell", "arrays", "sections", "steps"),
    [
        pytest.param(LSTM, 4 + 4, 8, 32, marks=pytest.mark.long(every_case=True)),
        pytest.param(GRU, 3 + 4, 4, 128, marks=pytest.mark.long),
    ],
)
def test_behind_the_last_checkpoint_a_loop_holds_what_it_does_in_sections(
    cell, arrays, sections, steps
):
    """Of a section its inputs, gates and their gradients; a GRU's have one for the state's part of
    the candidate too.
    """
    batch, features, units = 8, 64, 32
    inputs = keras.Input((sections * steps, features), batch_size=batch)
    layer, state, outputs = cell(units, return_sequences=True, return_state=True), None, []
    for begin in range(0, sections * steps, steps):
        y, *state = layer(TimeSlice(begin, begin + steps)(inputs), initial_state=state)
        state = mark(state) if len(outputs) < sections - 1 else state
        outputs.append(y)
    x = keras.layers.Dense(1)(keras.layers.Concatenate(axis=1)(outputs))
    whole = batch * sections * steps * units * 4
    section = batch * steps * (features + arrays * units) * 4
    # XLA projects the inputs of the last section early: they depend on no section before it.
    projected = batch * steps * (4 if cell is LSTM else 3) * units * 4
    # States and weights take a little.
    assert temporary_bytes(inputs, x) <= whole + section + projected + 32 * 1024
