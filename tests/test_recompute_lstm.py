"""The example: what it computes does not depend on the checkpoints, what it needs does, and bad input is told plainly."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import recompute_lstm
from keras_recompute.example.arguments import parse_arguments
from keras_recompute.example.data import make_dataset
from keras_recompute.example.session import Session
from keras_recompute.planning import predicted_peak_bytes

ROOT = Path(__file__).parent.parent
MIB = 2**20
SMALL = "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 --steps-per-epoch 6 --quiet".split()


def run(folder, *arguments, name="out"):
    path = folder / f"{name}.json"
    assert recompute_lstm.main([*SMALL, *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", params=["lstm-text", "gru-constant"])
def plain(request, folder):
    """The run that the others must equal: no checkpoints, nothing recomputed."""
    cell, data = request.param.split("-")
    options = ["--cell", cell, "--data", data]
    return options, run(folder, *options, "--checkpoints", "0", "--no-recompute", name=f"plain-{cell}")


# 48 steps: 8 sections of 6, 16 of 3; 7 sections do not divide them: 6 of 7 and 1 of 6.
@pytest.mark.parametrize("checkpoints", [0, 7, 15, 6])
def test_checkpoints_never_change_what_is_computed(plain, folder, checkpoints, capfd):
    options, expected = plain
    result = run(folder, *options, "--checkpoints", str(checkpoints), name=f"{options[1]}-{checkpoints}")
    assert len(result["losses"]) == len(expected["losses"]) == 3
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert result["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-5)
    warning = capfd.readouterr().err
    if checkpoints == 6:
        assert result["sections"] == [7] * 6 + [6]
        assert "can't be evenly divided" in warning
        assert "6 of 7 steps and 1 of 6" in warning
        assert "outlined program" in warning
    else:
        assert len(set(result["sections"])) == 1
        assert "divided" not in warning


def test_the_json_holds_every_figure(plain):
    options, result = plain
    assert set(result) >= set(
        "target cell seq_len checkpoints sections recompute losses gradient_norms parameters always_live_bytes "
        "not_always_live_peak_bytes peak_bytes input_feed_bytes allocated_temporary_bytes measured_peak_bytes program_steps "
        "program_instructions compile_seconds step_seconds capacity_bytes versions predicted_peak_bytes".split()
    )
    if "text" in options:
        # embedding 256 x 12, LSTM (12 + 8 + 1) x 32, dense 9 x 256
        assert result["parameters"] == 256 * 12 + 21 * 32 + 9 * 256
        # two microbatches of 4 sequences of 48 symbols and their successors, int32
        assert result["input_feed_bytes"] == 2 * 2 * 4 * 48 * 4
    else:
        # GRU (12 + 8 + 2) x 24, dense 9 x 1; features of 12 and one target, float32
        assert result["parameters"] == 22 * 24 + 9
        assert result["input_feed_bytes"] == 2 * 4 * 48 * (12 + 1) * 4
    assert result["peak_bytes"] == result["always_live_bytes"] + result["not_always_live_peak_bytes"]
    assert result["capacity_bytes"] == 1472 * 624 * 1024
    assert result["completed"] is True


def test_the_loss_falls(folder):
    result = run(folder, "--checkpoints", "1", "--epochs", "6", name="learns")
    assert result["losses"][0] == pytest.approx(5.545, abs=0.02)  # the logarithm of 256 symbols
    assert result["losses"][-1] < 5.2


def compiled(*arguments):
    """Return the record of the training program at the published sizes, compiled and not run."""
    import tensorflow as tf

    from keras_recompute.ipu import install, uninstall

    arguments = parse_arguments(["--data", "constant", "--quiet", *arguments], recompute_lstm.__doc__)
    session = Session(arguments, recompute_lstm.build_model)
    install()
    try:
        from tensorflow.python import ipu

        config = ipu.config.IPUConfig()
        config.allow_recompute = not arguments.no_recompute
        config.configure_ipu_system()
        with ipu.ipu_strategy.IPUStrategy().scope():
            session.model = recompute_lstm.build_model(tf, arguments)
            session.compile(make_dataset(tf, arguments, None))
    finally:
        ipu.config.reset_ipu_configuration()
        uninstall()
    return session.program


@pytest.fixture(scope="module")
def published():
    return {k: compiled("--checkpoints", str(k)) for k in (0, 1, 3, 7, 15, 31)}


def test_memory_falls_with_every_checkpoint(published):
    allocated = [published[k].allocated_temporary_bytes for k in (0, 1, 3, 7, 15)]
    assert allocated == sorted(allocated, reverse=True)
    assert len(set(allocated)) == len(allocated)


def test_memory_stays_within_its_bounds(published):
    # 144 MiB is the temporary memory of a JAX scan of jax.checkpoint(scan) for the same work.
    assert published[7].allocated_temporary_bytes <= 0.9 * 144 * MIB
    assert published[31].allocated_temporary_bytes <= 80 * MIB
    without = compiled("--checkpoints", "7", "--no-recompute")
    assert published[7].allocated_temporary_bytes <= without.allocated_temporary_bytes / 4


def test_the_program_does_not_grow_with_the_sections(published):
    assert published[31].program_instructions <= 1.3 * published[7].program_instructions


def test_the_prediction_is_near_what_is_compiled(published):
    for checkpoints, program in published.items():
        arguments = parse_arguments(["--data", "constant", "--checkpoints", str(checkpoints)], recompute_lstm.__doc__)
        predicted = predicted_peak_bytes(**Session(arguments, recompute_lstm.build_model).sizes())
        assert predicted == pytest.approx(program.peak_bytes, rel=0.1), f"{checkpoints} checkpoints"


def test_a_report_is_written_and_never_over_another(folder, capsys):
    report = folder / "report"
    run(folder, "--checkpoints", "1", "--report", str(report), name="reported")
    assert sorted(p.name for p in report.iterdir()) == ["liveness.json", "liveness.png"]
    before = (report / "liveness.json").read_bytes()
    assert recompute_lstm.main([*SMALL, "--report", str(report)]) == 2
    assert (report / "liveness.json").read_bytes() == before
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--checkpoints -1", ["--checkpoints", "-1", "the least is 0"]),
        ("--checkpoints 2.5", ["--checkpoints", "'2.5'", "whole number"]),
        ("--checkpoints 2048", ["--checkpoints 2048", "at most 2047"]),
        ("--seq-len 8 --checkpoints 9", ["--checkpoints 9", "at most 7"]),
        ("--units 0", ["--units", "0", "the least is 1"]),
        ("--batch-size zero", ["--batch-size", "'zero'"]),
        ("--learning-rate 0", ["--learning-rate", "above zero"]),
        ("--learning-rate nan", ["--learning-rate", "nan", "finite"]),
        ("--learning-rate inf", ["--learning-rate", "inf", "finite"]),
        ("--text nowhere.txt", ["nowhere.txt", "cannot be read"]),
        ("--text EMPTY", ["0 bytes", "needs 2049"]),
        ("--text SHORT", ["100 bytes", "lower --seq-len"]),
        ("--text SHORT --data constant", ["--text", "--data constant"]),
        ("--json no/such/folder/out.json", ["--json", "does not exist"]),
        ("--json FOLDER", ["--json", "exists already"]),
        ("--json FOLDER --force", ["--json", "a folder"]),
        ("--report FOLDER", ["--report", "--force"]),
        ("--report SHORT --force", ["--report", "a file"]),
        ("--report SHORT/inside", ["--report"]),
        ("--target tpu", ["--target", "'tpu'", "xla"]),
        ("--target ipu", ["--target ipu", "Poplar SDK", "--target xla"]),
        ("--gradient-accumulation 3", ["--gradient-accumulation 3", "40"]),
        ("--nonsense", ["--nonsense", "--help"]),
    ],
)
def test_bad_input_gets_one_line_and_touches_nothing(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("x" * 100)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name, path in (("EMPTY", "empty.txt"), ("SHORT", "short.txt"), ("FOLDER", "folder")):
        arguments = arguments.replace(name, path)
    assert recompute_lstm.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    for word in says:
        assert word in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_loss_that_is_no_number_stops_the_run(folder, capsys):
    path = folder / "nan.json"
    code = recompute_lstm.main([*SMALL, "--data", "constant", "--learning-rate", "1e30", "--json", str(path)])
    assert code == 1
    err = capsys.readouterr().err
    assert "update" in err
    assert "--learning-rate" in err
    assert json.loads(path.read_text())["completed"] is False


def test_help_is_the_docstring_and_loads_no_tensorflow():
    code = (
        "import sys, recompute_lstm; code = recompute_lstm.main(['--help']);"
        "assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert recompute_lstm.__doc__.splitlines()[0] in done.stdout


def test_wrong_arguments_are_found_before_tensorflow_is_loaded():
    code = (
        "import sys, recompute_lstm; code = recompute_lstm.main(['--checkpoints', '5000']);"
        "assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_interrupted_run_ends_at_once_and_keeps_what_was_reported(tmp_path):
    path = tmp_path / "partial.json"
    command = [sys.executable, "recompute_lstm.py", *SMALL[:-1], "--epochs", "100000", "--json", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("update 3/"):
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        error = process.stderr.read()
        assert process.wait(timeout=60) == 130, error
    assert "interrupted" in error
    assert "Traceback" not in error
    result = json.loads(path.read_text())
    assert len(result["losses"]) >= 3
    assert result["completed"] is False
