"""--device: what stands for it, and what it cannot be given with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.errors import DoesNotFitError, InvalidArgumentError
from keras_recompute.liveness import Buffer, Program, Step
from lstm_example import memory_check
from lstm_example.arguments import parse_arguments
from lstm_example.data import feed_bytes
from lstm_example.memory_check import (
    capacity_of,
    check_memory,
    compiled_needs,
    needed_bytes,
    predicted_bytes,
)
from lstm_example.sequence_plans import SequencePlan

ROOT = Path(__file__).parents[2]


def parsed(*arguments):
    return parse_arguments(list(arguments), "")


def test_a_device_compiles_and_trains_nothing_within_its_memory():
    options = parsed("--device", "V5E", "--checkpoints", "auto")
    assert (options.device, options.compile_only, options.memory_budget) == (
        "v5e",
        True,
        16 * 2**30,
    )
    assert capacity_of(options) == (16 * 2**30, "the TPU v5e")
    assert (
        parsed("--device", "h100", "--checkpoints", "auto", "--memory-budget", "8GiB").memory_budget
        == 8 * 2**30
    )
    assert capacity_of(parsed()) == (1472 * 624 * 1024, "a Mk2 IPU")


def test_a_step_on_a_device_may_take_more_than_this_machine_has(monkeypatch):
    """Of its data, 4 microbatches of zeros are here: 625 MiB."""
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: 2**30)
    options = parsed("--device", "b200", "--batch-size", "10000")
    assert predicted_bytes(options, SequencePlan(7)) > 2**36
    check_memory(options)
    with pytest.raises(InvalidArgumentError, match=r"needs 1\.22 GiB for its data"):
        check_memory(parsed("--device", "b200", "--batch-size", "20000"))


def test_the_data_is_in_the_memory_of_a_device():
    """Of constant data: 4 microbatches of 16 sequences of 2048 steps of 512 features and a target,
    of 4 bytes each.
    """
    on_device, here = parsed("--device", "h100", "--data", "constant"), parsed("--data", "constant")
    fed = 4 * 16 * 2048 * 513 * 4
    assert feed_bytes(here, 16) == fed
    assert (
        predicted_bytes(on_device, SequencePlan(7)) - predicted_bytes(here, SequencePlan(7)) == fed
    )
    steps = (Step("add", 8),)
    buffers = (
        Buffer("w", 4, 0, 0, "always-live", "weight"),
        Buffer("x", 2, 0, 0, "input-feed", "input"),
    )
    program = Program("step", "XLA", steps, buffers, allocated_temporary_bytes=10)
    assert (needed_bytes(program, here), needed_bytes(program, on_device)) == (4 + 10, 4 + 10 + 2)


def test_a_plan_that_a_device_has_no_room_for_needs_what_its_compiler_says():
    def refused():
        raise DoesNotFitError("too much", needed_bytes=123)

    assert compiled_needs(parsed("--device", "v5e"), refused) == (123, 123)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "h10"], "there is no device 'h10' (did you mean 'h100'?): give one of t4,"),
        (
            ["--device", "h100", "--workers", "2"],
            "--device: it compiles in one process; leave out --workers",
        ),
        (
            ["--device", "h100", "--memory-budget", "1GiB"],
            "--memory-budget: the number of checkpoints is given",
        ),
        (["--checkpoints", "auto"], "give --memory-budget, such as 128MiB, or --device"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, said):
    done = subprocess.run(
        [sys.executable, "recompute_lstm.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_device_without_its_compiler_is_one_line_before_tensorflow_is_loaded(tmp_path):
    without_packages = tmp_path / "python"
    without_packages.write_text("#!/bin/sh\necho {}\n")
    without_packages.chmod(0o755)
    environment = {**os.environ, "KERAS_RECOMPUTE_DEVICES_PYTHON": str(without_packages)}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "recompute_lstm.py", "--device", "h100"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2
    (line,) = said
    assert 'pip install "keras-recompute[devices]"' in line
    assert "| tensorflow\n" not in done.stderr
