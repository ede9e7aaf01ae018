"""Which processes there are: from TF_CONFIG, Slurm and Kubernetes."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from keras_recompute.distribute.cluster import find_cluster
from keras_recompute.distribute.membership import _lost_worker
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.models.execution.worker_roles import worker_number

from .running import ROOT

VARIABLES = ("TF_CONFIG", "SLURM_PROCID", "KERAS_RECOMPUTE_WORKERS")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def tf_config(cluster, kind="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("kind", "index", "number"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)],
    ids=["chief", "first", "second"],
)
def test_the_chief_comes_first(monkeypatch, kind, index, number):
    monkeypatch.setenv(
        "TF_CONFIG", tf_config({"worker": ["b:2", "c:3"], "chief": ["a:1"]}, kind, index)
    )
    cluster = find_cluster()
    assert cluster.addresses == ("a:1", "b:2", "c:3")
    assert (cluster.number, cluster.is_chief) == (number, number == 0)
    assert cluster.name(2) == "worker 2 of 3 (c:3)"
    assert worker_number(SimpleNamespace(cluster_resolver=cluster.resolver)) == number
    lost = (number + 1) % 3
    task = ("chief/replica:0/task:0", "worker/replica:0/task:0", "worker/task:1")[lost]
    assert _lost_worker(cluster, f"stopped sending heartbeats: /job:{task}").startswith(
        f"worker {lost} of 3"
    )


def test_slurm(monkeypatch):
    for name, value in {
        "PROCID": 2,
        "STEP_NUM_TASKS": 3,
        "STEP_NODELIST": "node[1-2]",
        "STEP_TASKS_PER_NODE": "2,1",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    cluster = find_cluster()
    assert cluster.addresses == ("node1:8888", "node1:8889", "node2:8888")
    assert cluster.number == 2


def test_kubernetes(monkeypatch):
    variables = {
        "KERAS_RECOMPUTE_WORKERS": 2,
        "KERAS_RECOMPUTE_SERVICE": "training",
        "JOB_COMPLETION_INDEX": 1,
    }
    for name, value in {**variables, "HOSTNAME": "my-run-1"}.items():
        monkeypatch.setenv(name, str(value))
    cluster = find_cluster()
    assert cluster.addresses == ("my-run-0.training:8888", "my-run-1.training:8888")
    assert cluster.number == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "belongs to no cluster: neither TF_CONFIG"),
        ({"TF_CONFIG": "{"}, r"TF_CONFIG='\{' is not JSON"),
        ({"TF_CONFIG": "[]"}, "lacks a cluster of addresses, or a task"),
        ({"TF_CONFIG": tf_config({"worker": []})}, "lacks a cluster of addresses"),
        ({"TF_CONFIG": tf_config({"worker": ["a"]})}, "lacks a cluster of addresses"),
        (
            {"TF_CONFIG": tf_config({"worker": ["a:1"]}, index=1)},
            "task 1 of 'worker', and has 1 of these, numbered from 0",
        ),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"]}, index="0")}, "task '0' of 'worker'"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"], "ps": ["b:1"]})}, r"names the jobs \['ps'\]"),
        (
            {"TF_CONFIG": tf_config({"worker": ["a:1"]}, kind="evaluator")},
            r"names the jobs \['evaluator'\]",
        ),
        ({"TF_CONFIG": "[" * 100_000}, r"TF_CONFIG='\[+.* is not JSON \(maximum recursion depth"),
        ({"TF_CONFIG": '{"cluster": ' * 50_000}, "is not JSON"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"]}, index=True)}, "task True of 'worker'"),
        ({"TF_CONFIG": tf_config({"worker": ["a:b"]})}, "lacks a cluster of addresses"),
        ({"TF_CONFIG": tf_config({"worker": ["a:0", "b:70000"]})}, "lacks a cluster of addresses"),
        (
            {"TF_CONFIG": tf_config({"worker": ["a:1", "b:1"], "chief": ["b:1"]})},
            "gives two processes the address 'b:1'",
        ),
        ({"TF_CONFIG": tf_config({"worker": [":1"]})}, "lacks a cluster of addresses"),
        (
            {"TF_CONFIG": tf_config({"x" * 5000: ["a:1"]})},
            r"names the jobs \['x+: use only chief",
        ),
        *(
            (
                {
                    "KERAS_RECOMPUTE_WORKERS": count,
                    "KERAS_RECOMPUTE_SERVICE": "s",
                    "JOB_COMPLETION_INDEX": "0",
                },
                "the second must be from 0 to below the first, with at most 5 digits",
            )
            for count in ("9" * 12, "\u00b2", "-1", "two")
        ),
        (
            {"SLURM_PROCID": "zero", "SLURM_STEP_NUM_TASKS": "1"},
            "Slurm's variables describe no cluster",
        ),
        (
            {"SLURM_PROCID": "0"},
            "Slurm's variables describe no cluster: .*. Start the script by srun",
        ),
        (
            {"KERAS_RECOMPUTE_WORKERS": "2"},
            "KERAS_RECOMPUTE_WORKERS is set and KERAS_RECOMPUTE_SERVICE is not",
        ),
        (
            {
                "KERAS_RECOMPUTE_WORKERS": "2",
                "KERAS_RECOMPUTE_SERVICE": "s",
                "JOB_COMPLETION_INDEX": "2",
            },
            "KERAS_RECOMPUTE_WORKERS=2 and JOB_COMPLETION_INDEX=2",
        ),
    ],
)
def test_a_cluster_that_cannot_work_is_refused(monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=said):
        find_cluster()


def test_what_cannot_work_is_found_out_before_tensorflow_is_loaded():
    loads = "import sys\nfrom keras_recompute.distribute.cluster import find_cluster\n"
    loads += "try: find_cluster({'TF_CONFIG': '[' * 100_000})\n"
    loads += "except ValueError: print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"
