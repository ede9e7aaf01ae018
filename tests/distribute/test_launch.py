"""Workers on this machine: what they print, how they end, and that none is left."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from keras_recompute.distribute import launch
from keras_recompute.distribute.launch import _PORTS, _free_ports
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
    [("exit(3)", 3, "ended with exit code 3"), ("os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL")],
    ids=["exit", "kill"],
)
def test_the_first_that_fails_ends_all(capfd, end, code, said):
    began = time.monotonic()
    assert launched(f"import time\nif number: {end}\ntime.sleep(60)", grace_seconds=0.2) == code
    assert time.monotonic() - began < 30
    assert capfd.readouterr().err == f"keras_recompute.distribute: worker 1 of 2 {said}\n"


def test_after_a_failure_all_are_started_again(tmp_path, capfd):
    script = f"path = {str(tmp_path / 'starts')!r} + str(number)\nis_first = not os.path.exists(path)\n"
    script += "open(path, 'a').write('x')\nexit(is_first)"
    assert launched(script, restarts=2) == 0
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["xx", "xx"]
    assert "starting all 2 workers again (1 of 2)" in capfd.readouterr().err
    assert launched("exit(4)", restarts=1) == 4


def test_none_is_left_when_the_launcher_is_ended(tmp_path):
    script = tmp_path / "sleep.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    started = subprocess.Popen([*LAUNCHER, "--workers", "2", str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    workers = [int(started.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 128 + signal.SIGTERM
    started.stdout.close()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.parametrize(
    ("workers", "restarts", "said"), [(0, 0, "workers=0"), (True, 0, "workers=True"), (1, -1, "restarts=-1")]
)
def test_numbers_that_cannot_be_are_refused(workers, restarts, said):
    with pytest.raises(InvalidArgumentError, match=said):
        launch(["true"], workers, restarts=restarts)


def test_the_command_line_says_in_one_line_what_is_wrong():
    done = subprocess.run([*LAUNCHER, "--workers", "0", "x.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "python3 -m keras_recompute.distribute: workers=0: give a whole number from 1 on\n",
    )
