"""The example in several processes: the losses of one, one report, and what cannot be is one line."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.distribute.launch import _free_ports

ROOT = Path(__file__).parents[2]
SMALL = "--seq-len 24 --units 4 --features 3 --batch-size 2 --steps-per-epoch 8 --epochs 2".split()


def script(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "recompute_lstm.py", *map(str, arguments)],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if name != "TF_CONFIG"}, **environment},
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
    done, together = figures(tmp_path / "together.json", *arguments, "--workers", workers, "--report", tmp_path / "report")
    assert len(together["losses"]) == 4  # 2 epochs of 8 microbatches, 4 of them an update
    for name in ("losses", "gradient_norms"):
        assert together[name] == pytest.approx(alone[name], rel=1e-5), name
    assert (alone["workers"], together["workers"]) == (1, workers)
    assert done.stdout.count("update 4/4") == 1
    assert "[1]" not in done.stdout
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"liveness.json", "liveness.png"}


def test_two_workers_train_to_the_losses_of_one_process(tmp_path):
    check_workers(tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("data", ["text", "constant"])
def test_four_workers_train_to_the_losses_of_one_process(tmp_path, data):
    check_workers(tmp_path, 4, "--data", data)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--workers", 3], {}, "--workers: 3 workers cannot share the 4 microbatches of an update"),
        (["--workers", 2, "--sweep", "1,3"], {}, "--sweep: it compares plans in one process"),
        (["--workers", 2, "--distribute", "auto"], {}, "--workers starts a cluster and --distribute joins one"),
        (["--workers", 2, "--text", "nowhere"], {}, "--text nowhere: it cannot be read"),
        (["--distribute", "auto"], {}, "this process belongs to no cluster"),
        (["--distribute", "auto"], {"TF_CONFIG": "{"}, "TF_CONFIG='{' is no JSON"),
        (["--distribute", "auto"], {"TF_CONFIG": tf_config([1], 1)}, "task 1 of 'worker', of which there are 1, from 0 on"),
        (["--distribute", "auto"], {"TF_CONFIG": tf_config([1, 2, 3], 0)}, "TF_CONFIG: 3 workers cannot share the 4"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, environment, said):
    done = script(*SMALL, *arguments, **environment)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "port.cc" not in line and "absl" not in line]
    assert line.startswith("recompute_lstm.py: ")
    assert said in line


def test_a_port_that_is_taken_and_workers_that_differ_are_one_line():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        done = script(*SMALL, "--distribute", "auto", TF_CONFIG=tf_config([taken.getsockname()[1], 1], 0))
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
    line = f"worker 1 of 2 (127.0.0.1:{ports[1]}) has seed 1 where worker 0 has 0: start all workers alike"
    assert said == [f"recompute_lstm.py: {line}"] * 2
