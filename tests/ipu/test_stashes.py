"""The plan of each schedule, and its stashes as buffers of the compiled program.

Source: Graphcore, pipelined training.
"""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_recompute.ipu.pipeline.model_stages import Task
from keras_recompute.ipu.pipeline.pipelining_ops import PipelineSchedule
from keras_recompute.ipu.pipeline.schedule import Schedule, microbatch_multiple
from keras_recompute.liveness import profile

from .pipeline_oracle import ORDERS, stage
from .pipelines import configure

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.mark.parametrize("name", ORDERS)
def test_the_plan_is_the_documented_table(name):
    assert [str(action) for action in Schedule.of(PipelineSchedule[name], 2).actions(4)] == ORDERS[
        name
    ].replace("|", "").split()


def test_inference_has_the_forward_positions_alone():
    plan = {
        kind.name: [str(a) for a in Schedule.of(kind, 2, trains=False).actions(2)]
        for kind in PipelineSchedule
    }
    assert plan["Grouped"] == ["F0m0", "F1m0", "F0m1", "F1m1"]
    assert plan["Sequential"] == ["F0m0", "F1m0", "F0m1", "F1m1"]


@pytest.mark.parametrize("kind", PipelineSchedule)
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_a_plan_runs_everything_once_and_nothing_before_what_it_needs(kind, stages):
    microbatches = 2 * stages
    done = [
        (a.is_backward, a.stage, a.microbatch)
        for a in Schedule.of(kind, stages).actions(microbatches)
    ]
    assert len(done) == len(set(done)) == 2 * stages * microbatches
    at = {action: n for n, action in enumerate(done)}
    for is_backward, s, m in done:
        needed = (
            (True, s + 1, m)
            if is_backward and s < stages - 1
            else (False, s if is_backward else s - 1, m)
        )
        assert needed[1] < 0 or at[needed] < at[is_backward, s, m]


@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_stash_depths(stages):
    """2(S-1-s) for Grouped, S-1-s for Interleaved, none for Sequential; none for the last stage."""
    depths = {
        kind.name: [Schedule.of(kind, stages).stash_depth(s) for s in range(stages)]
        for kind in PipelineSchedule
    }
    assert depths == {
        "Grouped": [2 * (stages - 1 - s) for s in range(stages)],
        "Interleaved": [stages - 1 - s for s in range(stages)],
        "Sequential": [0] * stages,
    }
    # What the plan really has in between, counted.
    for kind in PipelineSchedule:
        done = [
            (a.is_backward, a.stage, a.microbatch)
            for a in Schedule.of(kind, stages).actions(4 * stages)
        ]
        for s in range(stages):
            between = [
                sum(
                    a[:2] == (False, s)
                    for a in done[done.index((False, s, m)) + 1 : done.index((True, s, m))]
                )
                for m in range(4 * stages)
            ]
            assert max(between) == depths[kind.name][s]


def test_multiples_of_microbatches():
    table = {
        (kind.name, trains): microbatch_multiple(kind, 3, trains=trains)
        for kind in PipelineSchedule
        for trains in (True, False)
    }
    assert table == {
        ("Grouped", True): 6,
        ("Grouped", False): 3,
        ("Interleaved", True): 3,
        ("Interleaved", False): 3,
        ("Sequential", True): 1,
        ("Sequential", False): 1,
    }


ROWS, WIDTH, HIDDEN, LAST = 128, 32, 64, 256
FLOAT = 4


def model_of(schedule: str, *, recompute: bool, microbatches: int = 4):
    """A first stage of several layers, and a second one that takes more memory while it runs."""
    from tensorflow.python import ipu

    configure(recompute=recompute)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        inputs = x = keras.Input((WIDTH,), batch_size=ROWS)
        with stage(0):
            for _ in range(3):
                x = keras.layers.Dense(HIDDEN, activation="tanh")(x)
            x = keras.layers.Dense(2, activation="tanh")(x)
        with stage(1):
            for _ in range(2):
                x = keras.layers.Dense(LAST, activation="tanh")(x)
            x = keras.layers.Dense(1)(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=microbatches)
        model.set_pipelining_options(
            microbatches, pipeline_schedule=ipu.pipelining_ops.PipelineSchedule[schedule]
        )
    return model


def signature_of(model):
    return model.feed_signature((tf.TensorSpec((ROWS, WIDTH)), tf.TensorSpec((ROWS, 1))))


@pytest.fixture(scope="module")
def sequential():
    """The peak under Sequential, and the kept values, with and without recomputation."""
    return {recompute: measured("Sequential", recompute=recompute) for recompute in (False, True)}


def measured(schedule: str, *, recompute: bool):
    model = model_of(schedule, recompute=recompute)
    program = profile(model.execution, signature_of(model), input_feed=["feed"])
    return program.not_always_live_peak_bytes, model.pipeline.loops[Task.TRAIN].stashes


@pytest.mark.long
@pytest.mark.parametrize(
    ("schedule", "recompute"), [("Grouped", False), ("Interleaved", False), ("Grouped", True)]
)
def test_the_stashes_are_buffers_of_the_program(sequential, schedule, recompute):
    """The peak grows by what the stashes hold more than Sequential keeps in any case."""
    peak, stashes = measured(schedule, recompute=recompute)
    least, kept = sequential[recompute]
    depth = {"Grouped": 2, "Interleaved": 1}[schedule]
    assert [stash.depth for stash in stashes] == [depth, 0]
    # The input, and without recomputation the outputs of the four layers of the first stage.
    per_microbatch = ROWS * (WIDTH + (0 if recompute else 3 * HIDDEN + 2)) * FLOAT
    assert stashes[0].bytes_per_microbatch == per_microbatch
    assert stashes[0].total_bytes == (depth + 1) * per_microbatch
    assert [stash.depth for stash in kept] == [0, 0]
    # Sequential reads the input where it lies, and keeps the rest of one microbatch.
    assert kept[0].total_bytes == (0 if recompute else ROWS * (3 * HIDDEN + 2) * FLOAT)
    assert peak - least == pytest.approx(
        sum(s.total_bytes for s in stashes) - sum(s.total_bytes for s in kept), rel=0.05
    )


@pytest.mark.long
def test_the_size_of_the_program_does_not_depend_on_the_number_of_microbatches():
    sizes = {}
    for microbatches in (4, 40):
        model = model_of("Grouped", recompute=True, microbatches=microbatches)
        graph = model.execution.get_concrete_function(signature_of(model)).graph.as_graph_def()
        sizes[microbatches] = len(graph.node) + sum(
            len(function.node_def) for function in graph.library.function
        )
    assert sizes[4] == sizes[40], sizes
