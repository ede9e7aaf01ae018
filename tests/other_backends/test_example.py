"""The example on JAX and PyTorch learns what it learns on TensorFlow, and says what it lacks."""

import json
import sys

import keras
import numpy as np
import pytest

import recompute_lstm
from lstm_example.arguments import parse_arguments
from lstm_example.sequence_plans import plans_for
from tests.oracles.example_updates import UPDATES, assert_first_updates_agree

BACKEND = keras.config.backend()
TITLE = {"jax": "JAX", "torch": "PyTorch"}[BACKEND]
SMALL = (
    "--seq-len 24 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    "--steps-per-epoch 4 --quiet"
).split()


def figures_of(folder, *arguments):
    path = folder / f"{len(list(folder.iterdir()))}.json"
    assert recompute_lstm.main([*SMALL, *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("cell", UPDATES)
def test_the_first_updates_are_those_of_tensorflow(cell, tmp_path):
    assert_first_updates_agree(tmp_path / "saves", cell)
    assert "tensorflow" not in sys.modules


def test_checkpoints_never_change_what_is_computed(tmp_path):
    plans = ["--checkpoints 0 --no-recompute", "--checkpoints 4", "--checkpoints 3 --no-recompute"]
    losses = [figures_of(tmp_path, *plan.split())["losses"] for plan in plans]
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, rtol=1e-5)


def test_constant_numbers_are_learnt(tmp_path):
    figures = figures_of(tmp_path, "--data", "constant", "--cell", "gru", "--checkpoints", "2")
    assert figures["losses"][0] > figures["losses"][1] > 0
    assert figures["target"] == BACKEND
    assert {BACKEND, "keras", "python"} == set(figures["versions"])


def test_a_report_and_a_comparison_of_plans(tmp_path, capsys):
    report, sweep = tmp_path / "report", tmp_path / "sweep"
    figures = figures_of(tmp_path, "--checkpoints", "3", "--report", str(report))
    assert sorted(path.name for path in report.iterdir()) == ["liveness.json", "liveness.png"]
    assert figures["peak_bytes"] > figures["always_live_bytes"] > 4 * 3 * figures["parameters"]
    asked = "--seq-len 8 --sweep 3 --compile-only --memory-budget 256KiB --report".split()
    assert recompute_lstm.main([*SMALL, *asked, str(sweep)]) == 0
    rows = json.loads((sweep / "sweep.json").read_text())["rows"]
    assert [row["plan"] for row in rows] == ["no recomputation", "3 checkpoints"]
    assert rows[0]["largest_batch"] > 1
    assert "| 3 checkpoints " in capsys.readouterr().out


def test_a_plan_is_chosen_for_a_budget(tmp_path, capsys):
    asked = "--compile-only --data constant --seq-len 96 --units 32 --checkpoints".split()
    plain = figures_of(tmp_path, *asked, "0", "--no-recompute")
    given = plain["always_live_bytes"] + int(0.5 * plain["not_always_live_peak_bytes"])
    figures = figures_of(tmp_path, *asked, "auto", "--memory-budget", str(given))
    assert figures["recompute"]
    assert figures["needed_bytes"] <= given
    assert f"the fastest of {len(plans_for(96))} plans that fits" in capsys.readouterr().out


def test_loops_in_loops_are_not_among_the_plans():
    assert {plan.levels for plan in plans_for(64)} == {1}


@pytest.mark.parametrize(
    ("option", "value", "feature"),
    [
        ("--workers", "2", "distribute"),
        ("--distribute", "auto", "distribute"),
        ("--levels", "2", "Model.recomputation_levels"),
        ("--target ipu", "", "ipu"),
        ("--target xla", "", "ipu"),
    ],
)
def test_what_the_backend_lacks_is_one_line(option, value, feature, capsys):
    assert recompute_lstm.main([*SMALL, *option.split(), *value.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    lacks = f"keras_recompute.{feature} is not available on Keras's {TITLE} backend"
    assert err.startswith(f"recompute_lstm.py: {option}: {lacks}")


def test_a_device_that_is_not_here(tmp_path, capsys, monkeypatch):
    if BACKEND == "torch":  # which asks no compiler
        figures = figures_of(tmp_path, "--device", "h100", "--checkpoints", "3")
        assert figures["capacity_bytes"] > 70 * 2**30
        assert figures["losses"] == []
        assert "of the NVIDIA H100" in capsys.readouterr().out
        return
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho {}\n")
    without.chmod(0o755)
    monkeypatch.setenv("KERAS_RECOMPUTE_DEVICES_PYTHON", str(without))
    assert recompute_lstm.main([*SMALL, "--device", "h100"]) == 2
    assert 'pip install "keras-recompute[devices]"' in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run(tmp_path, capsys):
    path = tmp_path / "nan.json"
    asked = [*SMALL, "--data", "constant", "--learning-rate", "1e30", "--json", str(path)]
    assert recompute_lstm.main(asked) == 1
    assert "lower --learning-rate" in capsys.readouterr().err
    assert json.loads(path.read_text())["completed"] is False


def test_options_are_those_of_the_backend():
    assert parse_arguments(SMALL, "").target == BACKEND
