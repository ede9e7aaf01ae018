"""docs/choosing.md against the code: its Python runs, its options exist, its figures are those of
the planners.
"""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
import recompute_lstm
from keras_recompute.liveness import profile
from keras_recompute.planning import Chain
from keras_recompute.planning.single_replay import replay_seconds, single_replay_sections
from keras_recompute.sizes import format_bytes
from lstm_example.arguments import parse_arguments
from lstm_example.memory_check import predicted_bytes
from lstm_example.sequence_plans import SequencePlan, plans_for
from tests.oracle import assert_all_close
from tests.oracles.equal_steps import fewest_replayed_steps

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
TEXT = PAGE.read_text()


@pytest.mark.long
def test_the_python_runs(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/choosing.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    assert "within 4.00 MiB" in first
    assert second.startswith("('dense")


@pytest.mark.long
def test_the_loss_inside_the_sections_leaves_no_outputs_whole():
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
        if "SquaredErrors" in block
    )
    names = {"keras": keras, "kr": kr}
    exec(compile(code, "docs/choosing.md", "exec"), names)
    inside, (x, y) = names["with_loss"], names["with_loss"].inputs
    assert [name for name, _ in inside.plan.named_steps] == ["sections-0-14", ""]

    sequences, *_ = names["lstm"](x)
    outside = kr.Model(x, names["dense"](sequences))
    batch, whole = 8, 8 * 256 * 128 * 4  # sequences, bytes of all outputs: 1 MiB
    data = [
        np.random.default_rng(0).standard_normal((batch, *t.shape[1:])).astype("float32")
        for t in (x, y)
    ]

    def inside_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inside([x, y], training=True)) / (256 * 128)
        return loss, tape.gradient(loss, [v.value for v in inside.trainable_variables])

    def outside_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((outside(x, training=True) - y) ** 2) / (256 * 128)
        return loss, tape.gradient(loss, [v.value for v in inside.trainable_variables])

    signature = [tf.TensorSpec(array.shape) for array in data]
    assert profile(inside_step, *signature).not_always_live_peak_bytes < whole
    assert profile(outside_step, *signature).not_always_live_peak_bytes > 2 * whole
    found, expected = (
        tf.function(f, jit_compile=True)(*map(tf.constant, data))
        for f in (inside_step, outside_step)
    )
    assert_all_close(tf.nest.flatten(found), tf.nest.flatten(expected), rtol=1e-4, atol=1e-5)


def test_the_commands_are_understood():
    commands = re.findall(r"^python3 recompute_lstm\.py (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        parse_arguments(command.split(), recompute_lstm.__doc__)


def test_the_shown_choice_follows_from_the_predictions():
    options = parse_arguments(["--data", "constant"], recompute_lstm.__doc__)
    for k, shown in (
        (1, "next faster: 1 checkpoint, {}"),
        (3, "{} as predicted"),
        (7, "next cheaper: 7 checkpoints, {}"),
    ):
        assert shown.format(format_bytes(predicted_bytes(options, SequencePlan(k)))) in TEXT
    assert f"the fastest of {len(plans_for(2048))} plans" in TEXT
    assert f"plan: {SequencePlan(3)} ({SequencePlan(3).why(2048)})" in TEXT


def test_the_table_is_what_the_optimum_and_the_planner_say():
    chain = Chain.homogeneous(1000, state_bytes=1, activation_bytes=5)
    best = fewest_replayed_steps(1000, room_bytes=250, state_bytes=1, activation_bytes=5)
    expected = []
    # The input of the chain is alive in any case in the third row: its byte is not of the 100.
    for room in (250, 105, 101, 100):
        sections = single_replay_sections(chain, room_bytes=room)
        twice = "none fit" if sections is None else ratio(chain, replay_seconds(chain, sections))
        expected.append((ratio(chain, best[room, 1000]), twice))
    assert re.findall(r"\| (x [0-9.]+) \| (x [0-9.]+|none fit) \|", TEXT) == expected


def ratio(chain, replayed_seconds):
    return f"x {1 + replayed_seconds / chain.plain_seconds:.3f}"


def test_the_pictures_and_programs_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    for program in re.findall(r"python3 (\S+\.py)", TEXT):
        assert (PAGE.parents[1] / program).exists(), program
