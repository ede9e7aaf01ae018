"""A run that no memory holds is told before training, with what it needs; one that is refused
memory later, too.
"""

import json

import pytest
from fake_training import Pretended

import recompute_lstm
from keras_recompute.liveness import local_device
from lstm_example import memory_check
from lstm_example import run as course
from lstm_example.data import data_bytes
from lstm_example.sequence_plans import named_plans

MANY = "99999999999"


@pytest.mark.parametrize(
    "arguments",
    [
        f"--units {MANY}",
        f"--units {MANY} --compile-only",
        f"--units {MANY} --checkpoints auto --memory-budget 1GiB",
        f"--units {MANY} --sweep 1,3",
        f"--features {MANY}",
        f"--batch-size {MANY}",
        f"--seq-len {MANY}",
        f"--data constant --seq-len {MANY} --checkpoints 99999999998",
        f"--data constant --batch-size {MANY}",
        f"--batch-size {MANY} --compile-only --checkpoints 1",
        f"--batch-size {10**12} --device h100",
        f"--data constant --seq-len {MANY} --device h100",
        f"--data constant --steps-per-epoch {MANY} --gradient-accumulation {MANY}",
    ],
)
def test_what_no_memory_holds_is_told_before_training(arguments, capsys):
    assert recompute_lstm.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "TiB" in err
    assert "lower --batch-size" in err


def test_the_sum_is_of_the_step_and_the_data(monkeypatch, capsys):
    """One plan, the microbatch that is drawn and the 4 of a feed, each of 16 x 2048 symbols and as
    many successors.
    """
    data = (1 + 4) * 16 * 2048 * 2 * 4
    parsed = course.parse_arguments(["--checkpoints", "7"], "")
    step = memory_check.predicted_bytes(parsed, *named_plans(parsed))
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: step + data)
    memory_check.check_memory(parsed)
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: step + data - 1)
    assert recompute_lstm.main(["--checkpoints", "7"]) == 2
    assert (
        "the run needs 186 MiB for a training step and 1.25 MiB for its data, and this machine has "
        "187 MiB" in (capsys.readouterr().err)
    )


def test_what_is_only_compiled_needs_its_weights_and_a_feed(monkeypatch):
    """A step of 186 MiB that no machine of 64 MiB trains is compiled all the same."""
    parsed = course.parse_arguments(["--checkpoints", "7", "--compile-only"], "")
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: 64 * 2**20)
    memory_check.check_memory(parsed)
    feed = 4 * 16 * 2048 * 2 * 4
    assert data_bytes(parsed) == feed


def test_the_memory_of_the_machine_is_known_where_something_tells_it(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       2048 kB\nMemFree:  1 kB\nSwapTotal:       1024 kB\n"
    )
    monkeypatch.setattr(local_device, "_MEMORY", tmp_path / "meminfo")
    for bound, there in ((None, 3 * 2**20), ("max\n", 3 * 2**20), ("1048576\n", 2**20)):
        if bound:
            (tmp_path / "bound").write_text(bound)
        monkeypatch.setattr(local_device, "_CONTROL_GROUP", tmp_path / "bound")
        assert local_device.machine_bytes() == there


def test_memory_that_is_refused_in_training_is_one_line_and_the_figures_stay(
    monkeypatch, tmp_path, capsys
):
    class Refused(Pretended):
        def train(self, text):
            super().train(text)
            raise MemoryError

    monkeypatch.setattr(course, "TrainingRun", Refused)
    path = tmp_path / "out.json"
    assert recompute_lstm.main(["--quiet", "--json", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert "out of memory: the run needs 186 MiB for a training step" in err
    assert json.loads(path.read_text())["losses"] == [2.0, 1.0]


def test_what_nobody_expected_is_one_line_and_the_figures_stay(monkeypatch, tmp_path, capsys):
    class Broken(Pretended):
        def train(self, text):
            super().train(text)
            raise KeyError("first\nsecond")

    monkeypatch.setattr(course, "TrainingRun", Broken)
    path = tmp_path / "out.json"
    assert recompute_lstm.main(["--quiet", "--json", str(path)]) == 1
    assert capsys.readouterr().err == "recompute_lstm.py: KeyError: 'first\\nsecond'\n"
    assert json.loads(path.read_text())["losses"] == [2.0, 1.0]


def test_what_tensorflow_is_refused_is_out_of_memory():
    tf = pytest.importorskip("tensorflow")
    assert memory_check.is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "OOM"))
    assert not memory_check.is_out_of_memory(tf.errors.InternalError(None, None, "no"))


@pytest.mark.long
def test_what_compiling_shows_not_to_fit_is_not_run(monkeypatch, tmp_path, capsys):
    """No plan is named, so that the weights and the data are all that is known before: 95 KiB and
    12.
    """
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(memory_check, "machine_bytes", lambda: 200 * 2**10)
    small = "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    small += "--steps-per-epoch 6 --quiet"
    path = tmp_path / "out.json"
    assert (
        recompute_lstm.main(
            [*small.split(), *"--checkpoints auto --memory-budget 1GiB --json".split(), str(path)]
        )
        == 2
    )
    assert "this machine has 200 KiB" in capsys.readouterr().err
    result = json.loads(path.read_text())
    assert result["peak_bytes"] > 200 * 2**10
    assert result["losses"] == []
