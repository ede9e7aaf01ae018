"""Workers on this machine: what they print, how they end, and that none is left."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_recompute.distribute import launch
from keras_recompute.distribute.__main__ import main
from keras_recompute.distribute.launcher import _PORTS, _free_ports
from keras_recompute.distribute.watcher import end_workers_at_eof
from keras_recompute.errors import InvalidArgumentError

from .running import LAUNCHER, ROOT

NUMBER = "import json, os; number = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


def launched(script, workers=2, **options):
    return launch([sys.executable, "-c", NUMBER + script], workers, **options)


def test_ports_are_free_and_none_that_the_system_hands_out(monkeypatch):
    with socket.socket() as others:
        others.bind(("", 0))
        handed_out = others.getsockname()[1]
        others.listen()
        assert handed_out not in _PORTS
        monkeypatch.setitem(_free_ports.__globals__, "_PORTS", range(handed_out, handed_out + 1))
        assert _free_ports(1) == []
    monkeypatch.undo()
    found = _free_ports(4)
    assert len(set(found)) == 4
    assert set(found) <= set(_PORTS)


def test_what_they_print_comes_out_line_by_line(capfd):
    assert launched("import sys; print('out', number); print('err', number, file=sys.stderr)") == 0
    found = capfd.readouterr()
    assert sorted(found.out.splitlines()) == ["[1] out 1", "out 0"]
    assert sorted(found.err.splitlines()) == ["[1] err 1", "err 0"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("exit(3)", 3, "ended with exit code 3"),
        ("os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL"),
    ],
    ids=["exit", "kill"],
)
def test_the_first_that_fails_ends_all(capfd, end, code, said):
    began = time.monotonic()
    assert launched(f"import time\nif number: {end}\ntime.sleep(60)", grace_seconds=0.2) == code
    assert time.monotonic() - began < 30
    assert capfd.readouterr().err == f"keras_recompute.distribute: worker 1 of 2 {said}\n"


def test_after_a_failure_all_are_started_again(tmp_path, capfd):
    script = (
        f"path = {str(tmp_path / 'starts')!r} + str(number)\nis_first = not os.path.exists(path)\n"
    )
    script += "open(path, 'a').write('x')\nexit(is_first)"
    assert launched(script, restarts=2) == 0
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["xx", "xx"]
    assert "restarting all 2 workers (1 of 2)" in capfd.readouterr().err
    assert launched("exit(4)", restarts=1) == 4


def test_none_is_left_when_the_launcher_is_ended(tmp_path):
    script = tmp_path / "sleep.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    started = subprocess.Popen(
        [*LAUNCHER, "--workers", "2", str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    workers = [int(started.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 128 + signal.SIGTERM
    started.stdout.close()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


SLEEPS = """
import os, signal, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def is_there(process):
    """Whether a process runs: one that nobody waited for is a zombie, and has ended."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="the test tells processes apart by /proc"
)
@pytest.mark.parametrize("arguments", [[], ["deaf"]], ids=["heeds", "deaf"])
def test_none_is_left_when_the_launcher_is_killed(tmp_path, arguments):
    """By the one signal that it cannot handle, with workers that do not know of any launcher."""
    script = tmp_path / "sleep.py"
    script.write_text(SLEEPS)
    command = [*LAUNCHER, "--workers", "2", str(script), *arguments]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    workers = [int(started.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    children = list(
        map(int, Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split())
    )
    started.kill()
    started.wait()
    deadline = time.monotonic() + 10
    while any(map(is_there, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    started.stdout.close()
    assert len(children) == 3  # and who ends them
    assert [process for process in {*workers, *children} if is_there(process)] == []


def test_a_worker_that_has_ended_is_left_alone():
    """Its number may be another process's by now."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        end_workers_at_eof([f"+{other.pid}\n", f"-{other.pid}\n"])
        assert other.poll() is None
        other.stdin.close()
        assert other.wait() == 1
    end_workers_at_eof([f"+{other.pid}\n"])  # gone: nothing to do


def test_more_workers_than_files_may_be_open_or_ports_there_are_is_one_line_before_any_starts(
    tmp_path,
):
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    limited = ["/bin/sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *LAUNCHER]
    for launcher, workers, says in (
        (
            limited,
            "200",
            "workers=200 need 432 open files, and the system allows 64: start fewer",
        ),
        (LAUNCHER, "1000000", "workers=1000000 need "),
    ):
        command = [*launcher, "--workers", workers, str(script)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert says in done.stderr
    assert not (tmp_path / "started").exists()


def test_fewer_ports_than_workers_are_refused(monkeypatch):
    monkeypatch.setitem(_free_ports.__globals__, "_PORTS", range(20_000, 20_003))
    with pytest.raises(
        InvalidArgumentError, match=r"workers=4: this machine has only [0-3] free ports"
    ):
        launch(["true"], 4)


def test_what_the_system_does_not_start_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(
        InvalidArgumentError, match=r"worker 0 of 2 cannot be started \(No such file or directory\)"
    ):
        launch([str(tmp_path / "no program")], 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: --workers, script"),
        (["--workers", "two", "x.py"], "argument --workers: 'two' is not a whole number"),
        (["--workers", "9" * 5000, "x.py"], "is not a whole number"),
        (["--workers", "-1", "x.py"], "workers=-1: give a whole number from 1 on"),
        (
            ["--workers", "1", "--restarts", "-1", "x.py"],
            "restarts=-1: give a whole number from 0 on",
        ),
        (["--workers", "1", "nowhere.py"], "the script 'nowhere.py' cannot be read"),
        (["--workers", "1", ""], "the name of the script is empty"),
        (["--workers", "1", "x" * 300], "cannot be read"),
        (["--colour"], "the following arguments are required"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_line_that_cannot_be_is_one_line(capsys, arguments, says):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


@pytest.mark.parametrize(
    ("workers", "restarts", "said"),
    [(0, 0, "workers=0"), (True, 0, "workers=True"), (1, -1, "restarts=-1")],
)
def test_numbers_that_cannot_be_are_refused(workers, restarts, said):
    with pytest.raises(InvalidArgumentError, match=said):
        launch(["true"], workers, restarts=restarts)


def test_the_command_line_says_in_one_line_what_is_wrong():
    done = subprocess.run(
        [*LAUNCHER, "--workers", "0", "x.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "python3 -m keras_recompute.distribute: workers=0: give a whole number from 1 on\n",
    )
