"""However a run ends, its figures are kept: signals, an output that nobody hears, a disk that is
full.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")
HERE = Path(__file__).parent
SCRIPT = [sys.executable, str(HERE / "fake_training.py"), "--checkpoints", "1", "--target", "xla"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}


def heed_hangup():
    """Tests that run under nohup hand on that SIGHUP is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(folder, *arguments, redirect="", **options):
    """Start the pretended script in ``folder``, with ``redirect`` as a shell writes it."""
    command = ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", *SCRIPT, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {"preexec_fn": heed_hangup, **options}
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **pipes, **options)


def run(folder, *arguments, **options):
    """Return exit code, output and errors."""
    with start(folder, *arguments, **options) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def losses(path):
    return json.loads(path.read_text())["losses"]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_the_run_and_keeps_the_figures(tmp_path, name, code):
    with start(tmp_path, "--epochs", "2", "--json", "out.json") as process:
        assert process.stdout.readline() == "update 2/2\n"
        process.send_signal(getattr(signal, name))
        process.send_signal(signal.SIGTERM)  # another one must not end what writes the figures
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert set(out.split()) <= {"again"}
    assert err.count("\n") == 1, err
    assert f"interrupted by {name} after 2 updates" in err
    assert losses(tmp_path / "out.json") == [2.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    """As under nohup."""
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with start(tmp_path, "--epochs", "2", **ignored) as process:
        assert process.stdout.readline() == "update 2/2\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


@pytest.mark.parametrize(
    ("redirect", "says"), [(">&-", "is closed"), (">/dev/full", "No space left on device")]
)
def test_without_an_output_the_files_are_written(tmp_path, redirect, says):
    if "full" in redirect and not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full")
    code, _, err = run(tmp_path, "--json", "out.json", "--report", "report", redirect=redirect)
    assert code == 1
    assert err.count("\n") == 1, err
    assert "standard output" in err
    assert says in err
    assert losses(tmp_path / "out.json") == [2.0, 1.0]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "liveness.json",
        "liveness.png",
    ]


@pytest.mark.long
def test_without_any_standard_stream_the_files_are_written_and_nothing_else_into_them(tmp_path):
    code, out, err = run(
        tmp_path, "--json", "out.json", "--report", "report", redirect="<&- >&- 2>&-"
    )
    assert (code, out, err) == (1, "", "")
    assert losses(tmp_path / "out.json") == [2.0, 1.0]


@pytest.mark.parametrize("redirect", ["", ">&-"])
def test_a_run_that_can_tell_nobody_anything_ends(tmp_path, redirect):
    with start(tmp_path, "--epochs", "2", redirect=redirect) as process:
        process.stdout.readline()
        process.stdout.close()  # as `| head -n 1` does
        err = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert err.count("\n") == 1, err
    assert "standard output" in err


def test_errors_that_cannot_be_told_leave_the_code(tmp_path):
    assert run(tmp_path, "--seed", "-1", redirect="2>&-") == (2, "", "")


def no_file_may_have_a_byte():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    "files",
    [["--json", "out.json"], ["--report", "report"], ["--report", "report", "--json", "out.json"]],
)
def test_where_no_file_can_be_written_the_figures_are_printed(tmp_path, files):
    code, out, err = run(tmp_path, *files, preexec_fn=no_file_may_have_a_byte)
    assert code == 1
    assert err.count("\n") == 1, err
    assert err.count("cannot be written") == len(files) // 2
    assert "loss: 1.0000 (at first 2.0000)" in out
    if "--json" in files:
        assert "printed instead" in err
        assert json.loads(out[out.index("{") :])["losses"] == [2.0, 1.0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_interrupted_run_that_cannot_write_prints(tmp_path):
    with start(
        tmp_path, "--epochs", "2", "--json", "out.json", preexec_fn=no_file_may_have_a_byte
    ) as process:
        assert process.stdout.readline() == "update 2/2\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.count("\n") == 1, err
    assert "SIGTERM" in err
    assert "printed instead" in err
    assert json.loads(out[out.index("{") :])["losses"] == [2.0, 1.0]
