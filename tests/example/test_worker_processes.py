"""The example in several processes: the losses of one, one report, and errors in one line."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute import distribute
from keras_recompute.distribute.launcher import _free_ports
from keras_recompute.errors import InvalidArgumentError
from lstm_example import run as course
from lstm_example.arguments import parse_arguments
from lstm_example.worker_processes import join_cluster, start_workers

ROOT = Path(__file__).parents[2]
SMALL = "--seq-len 24 --units 4 --features 3 --batch-size 2 --steps-per-epoch 8 --epochs 2".split()


def script(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "recompute_lstm.py", *map(str, arguments)],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def figures(path, *arguments):
    done = script(*SMALL, *arguments, "--json", path)
    assert done.returncode == 0, done.stderr[-2000:]
    return done, json.loads(path.read_text())


def tf_config(ports, index):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


def check_workers(tmp_path, workers, *arguments):
    _, alone = figures(tmp_path / "alone.json", *arguments)
    # A busy machine is no loss
    of_workers = ["--workers", workers, "--heartbeat-seconds", 60, "--report", tmp_path / "report"]
    done, together = figures(tmp_path / "together.json", *arguments, *of_workers)
    assert len(together["losses"]) == 4  # 2 epochs of 8 microbatches, 4 of them an update
    for name in ("losses", "gradient_norms"):
        assert together[name] == pytest.approx(alone[name], rel=1e-5), name
    assert (alone["workers"], together["workers"]) == (1, workers)
    assert done.stdout.count("update 4/4") == 1
    assert "[1]" not in done.stdout
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "liveness.json",
        "liveness.png",
    }


def test_only_the_first_worker_tries_where_results_are_to_go(tmp_path, monkeypatch):
    """What one tries with is there for a moment, and would be in the way of another."""
    options = parse_arguments(
        ["--distribute", "auto", "--report", str(tmp_path), "--log", str(tmp_path / "log")], ""
    )
    monkeypatch.setenv("TF_CONFIG", tf_config(_free_ports(2), 1))
    assert course._check_and_find_text(options) is not None
    monkeypatch.setenv("TF_CONFIG", tf_config(_free_ports(2), 0))
    with pytest.raises(InvalidArgumentError, match="it exists already"):
        course._check_and_find_text(options)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "data"), [(4, "text"), (4, "constant"), (2, "text")])
def test_workers_train_to_the_losses_of_one_process(tmp_path, workers, data):
    check_workers(tmp_path, workers, "--data", data)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--workers", 3], {}, "--workers: 3 workers cannot share the 4 microbatches of an update"),
        (["--workers", 2, "--sweep", "1,3"], {}, "--sweep: it compares plans in one process"),
        (
            ["--workers", 2, "--distribute", "auto"],
            {},
            "--workers starts a cluster and --distribute joins one",
        ),
        (["--workers", 2, "--text", "nowhere"], {}, "--text nowhere: it cannot be read"),
        (["--wait-seconds", 5], {}, "--wait-seconds: it is for several processes"),
        (["--heartbeat-seconds", 5], {}, "--heartbeat-seconds: it is for several processes"),
        (
            ["--workers", 2, "--wait-seconds", 0],
            {},
            "argument --wait-seconds: 0 is too small: the least is 1",
        ),
        (
            ["--workers", 2, "--heartbeat-seconds", "soon"],
            {},
            "argument --heartbeat-seconds: 'soon' is not a whole number",
        ),
        (["--distribute", "auto"], {"TF_CONFIG": "{"}, "TF_CONFIG='{' is not JSON"),
        *(
            pytest.param(["--distribute", "auto"], environment, said, marks=pytest.mark.long)
            for environment, said in [
                ({}, "this process belongs to no cluster"),
                (
                    {"TF_CONFIG": tf_config([1], 1)},
                    "task 1 of 'worker', and has 1 of these, numbered from 0",
                ),
                ({"TF_CONFIG": tf_config([1, 2, 3], 0)}, "TF_CONFIG: 3 workers cannot share the 4"),
            ]
        ),
    ],
)
def test_what_cannot_be_is_one_line(arguments, environment, said):
    done = script(*SMALL, *arguments, **environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("recompute_lstm.py: ")
    assert said in line


@pytest.mark.long
def test_a_worker_that_does_not_come_is_waited_for_as_long_as_is_said():
    ports = _free_ports(2)
    done = script(
        *SMALL, "--distribute", "auto", "--wait-seconds", 1, TF_CONFIG=tf_config(ports, 0)
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert (
        said
        == f"recompute_lstm.py: worker 1 of 2 (127.0.0.1:{ports[1]}) did not connect within 1 s"
    )


@pytest.mark.parametrize(
    ("arguments", "waits", "heartbeat"),
    [([], 300, 10), (["--wait-seconds", "7", "--heartbeat-seconds", "60"], 7, 60)],
)
def test_how_long_is_waited_reaches_the_workers_and_their_launcher(
    monkeypatch, arguments, waits, heartbeat
):
    asked = []

    @contextlib.contextmanager
    def join(**options):
        asked.append(options)
        yield "a strategy"

    monkeypatch.setattr(distribute, "join", join)
    monkeypatch.setattr(
        distribute,
        "launch",
        lambda command, workers, **options: asked.append((command[2:], workers, options)),
    )
    monkeypatch.setenv("TF_CONFIG", tf_config([1, 2], 0))
    with join_cluster(parse_arguments(["--distribute", "auto", *arguments], ""), None):
        pass
    start_workers(
        "script",
        ["--workers", "2", *arguments],
        parse_arguments(["--workers", "2", *arguments], ""),
    )
    of_join, of_launch = asked
    assert (of_join["wait_seconds"], of_join["heartbeat_seconds"]) == (waits, heartbeat)
    # The others notice that a worker is lost after a heartbeat, and say so, before the launcher
    # ends them.
    assert of_launch == ([*arguments, "--distribute", "auto"], 2, {"grace_seconds": heartbeat + 20})


@pytest.mark.long
def test_a_port_that_is_taken_and_workers_that_differ_are_one_line():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        done = script(
            *SMALL, "--distribute", "auto", TF_CONFIG=tf_config([taken.getsockname()[1], 1], 0)
        )
    assert done.returncode == 2
    assert "a port that it cannot listen at" in done.stderr.splitlines()[-1]
    ports = _free_ports(2)
    command = [sys.executable, "recompute_lstm.py", *SMALL, "--distribute", "auto", "--seed"]
    started = [
        subprocess.Popen(
            [*command, str(seed)],
            cwd=ROOT,
            env={**os.environ, "TF_CONFIG": tf_config(ports, seed)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 1)
    ]
    said = [process.communicate(timeout=120)[1].splitlines()[-1] for process in started]
    assert [process.returncode for process in started] == [1, 1]
    line = f"worker 1 of 2 (127.0.0.1:{ports[1]}) has seed 1 where worker 0 has 0: "
    line += "start all workers alike"
    assert said == [f"recompute_lstm.py: {line}"] * 2
