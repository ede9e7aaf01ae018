"""The values that each recomputation mode keeps from a stage's forward to its backward pass.

Source: Graphcore, pipelined training.
"""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_recompute.ipu.pipeline.model_stages import Task

from .pipeline_oracle import stage
from .pipelines import configure

ROWS, WIDTH = 2, 3
THEN, BETWEEN = "RecomputeThenBackpropagate", "RecomputeAndBackpropagateInterleaved"


pytestmark = pytest.mark.usefixtures("graphcore_names")


def checkpoint(x):
    from tensorflow.python import ipu

    return ipu.pipelining_ops.recomputation_checkpoint(x)


def kept(build, mode, *, schedule="Grouped"):
    """Return the shapes kept by the two stages of ``build``; None means no recomputation."""
    from tensorflow.python import ipu

    configure(recompute=mode is not None)
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((WIDTH,), batch_size=ROWS)
        model = keras.Model(inputs, build(inputs))
        model.compile("sgd", "mse", steps_per_execution=4)
        model.set_pipelining_options(
            4,
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule[schedule],
            recomputation_mode=ipu.pipelining_ops.RecomputationMode[mode or "Auto"],
        )
    specs = tf.TensorSpec((ROWS, WIDTH)), tf.TensorSpec((ROWS, 1))
    model.execution.get_concrete_function(model.feed_signature(specs))
    stashes = model.pipeline.loops[Task.TRAIN].stashes
    return [sorted(tuple(spec.shape) for spec in stash.specs) for stash in stashes]


def dense(units, x):
    return keras.layers.Dense(units, activation="tanh")(x)


def plain(x, *, mark=lambda x: x):
    """Dense layers of 4, 5, 6 and 7 in the first stage, of 8 and 1 in the last.

    ``mark`` comes after the second.
    """
    with stage(0):
        x = mark(dense(5, dense(4, x)))
        x = dense(7, dense(6, x))
    with stage(1):
        return dense(1, dense(8, x))


X, A, B, C, D, E, F = (
    (ROWS, WIDTH),
    (ROWS, 4),
    (ROWS, 5),
    (ROWS, 6),
    (ROWS, 7),
    (ROWS, 8),
    (ROWS, 1),
)


def test_without_recomputation_everything_that_the_backward_pass_reads():
    """The input and the output of every layer; in the last stage its input, and the errors."""
    first, last = kept(plain, None)
    assert first == sorted([X, A, B, C, D])
    assert set(last) >= {D, E, F}


def test_recompute_then_backpropagate_keeps_the_stage_s_input():
    first, last = kept(plain, THEN)
    assert first == [X]
    assert set(last) >= {D, E, F}, "the last stage is not recomputed"


@pytest.mark.long
def test_recompute_then_backpropagate_passes_over_checkpoints():
    assert kept(lambda x: plain(x, mark=checkpoint), THEN)[0] == [X]


@pytest.mark.long
def test_interleaved_recomputation_keeps_checkpoints_too():
    assert kept(plain, BETWEEN)[0] == [X]
    assert kept(lambda x: plain(x, mark=checkpoint), BETWEEN)[0] == sorted([X, B])


@pytest.mark.long
def test_a_checkpoint_that_is_only_an_input_or_an_output_of_a_stage_is_ignored():
    def around(x):
        with stage(0):
            x = checkpoint(dense(7, dense(4, checkpoint(x))))
        with stage(1):
            return dense(1, x)

    def without(x):
        with stage(0):
            x = dense(7, dense(4, x))
        with stage(1):
            return dense(1, x)

    assert kept(around, BETWEEN)[0] == kept(without, BETWEEN)[0] == [X]


@pytest.mark.long
def test_the_last_stage_recomputes_what_leads_to_its_last_checkpoint():
    def last_marked(x):
        with stage(0):
            x = dense(4, x)
        with stage(1):
            x = checkpoint(dense(6, dense(5, x)))
            return dense(1, dense(8, x))

    _, last = kept(last_marked, BETWEEN)
    assert B not in last
    assert {A, C, E, F} <= set(last)


@pytest.mark.parametrize("mode", [THEN, BETWEEN])
def test_the_results_of_stateful_operations_are_kept(mode):
    """Of a dropout the two numbers of its seed: the mask follows from them."""

    def dropping(x):
        with stage(0):
            x = dense(7, keras.layers.Dropout(0.5)(dense(4, x)))
        with stage(1):
            return dense(1, x)

    first, _ = kept(dropping, mode)
    assert (2,) in first
    assert A not in first


@pytest.mark.long
def test_weights_are_never_kept():
    for mode in (None, THEN, BETWEEN):
        for shapes in kept(plain, mode):
            assert not {(WIDTH, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 1)} & set(shapes)


@pytest.mark.long
def test_auto_means_the_schedule_s_own_mode():
    assert kept(plain, "Auto")[0] == [X]
    assert kept(plain, "Auto", schedule="Interleaved")[0] == [X]
    assert kept(plain, "Auto", schedule="Sequential")[0] == [], "the input is read where it lies"
