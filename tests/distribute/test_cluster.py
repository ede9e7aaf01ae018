"""Which processes there are: from TF_CONFIG, Slurm and Kubernetes."""

import json
from types import SimpleNamespace

import pytest

from keras_recompute.distribute.cluster import find_cluster
from keras_recompute.distribute.joining import _lost
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.models.workers import worker_number

VARIABLES = ("TF_CONFIG", "SLURM_PROCID", "KERAS_RECOMPUTE_WORKERS")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def tf_config(cluster, kind="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("kind", "index", "number"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)], ids=["chief", "first", "second"]
)
def test_the_chief_comes_first(monkeypatch, kind, index, number):
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["b:2", "c:3"], "chief": ["a:1"]}, kind, index))
    cluster = find_cluster()
    assert cluster.addresses == ("a:1", "b:2", "c:3")
    assert (cluster.number, cluster.is_chief) == (number, number == 0)
    assert cluster.name(2) == "worker 2 of 3 (c:3)"
    assert worker_number(SimpleNamespace(cluster_resolver=cluster.resolver)) == number
    lost = (number + 1) % 3
    task = ("chief/replica:0/task:0", "worker/replica:0/task:0", "worker/task:1")[lost]
    assert _lost(cluster, f"stopped sending heartbeats: /job:{task}").startswith(f"worker {lost} of 3")


def test_slurm(monkeypatch):
    for name, value in {"PROCID": 2, "STEP_NUM_TASKS": 3, "STEP_NODELIST": "node[1-2]", "STEP_TASKS_PER_NODE": "2,1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    cluster = find_cluster()
    assert cluster.addresses == ("node1:8888", "node1:8889", "node2:8888")
    assert cluster.number == 2


def test_kubernetes(monkeypatch):
    variables = {"KERAS_RECOMPUTE_WORKERS": 2, "KERAS_RECOMPUTE_SERVICE": "training", "JOB_COMPLETION_INDEX": 1}
    for name, value in {**variables, "HOSTNAME": "my-run-1"}.items():
        monkeypatch.setenv(name, str(value))
    cluster = find_cluster()
    assert cluster.addresses == ("my-run-0.training:8888", "my-run-1.training:8888")
    assert cluster.number == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "belongs to no cluster: neither TF_CONFIG"),
        ({"TF_CONFIG": "{"}, r"TF_CONFIG='\{' is no JSON"),
        ({"TF_CONFIG": "[]"}, "has no cluster of addresses, or no task"),
        ({"TF_CONFIG": tf_config({"worker": []})}, "has no cluster of addresses"),
        ({"TF_CONFIG": tf_config({"worker": ["a"]})}, "has no cluster of addresses"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"]}, index=1)}, "task 1 of 'worker', of which there are 1, from 0 on"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"]}, index="0")}, "task '0' of 'worker'"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"], "ps": ["b:1"]})}, r"names the jobs \['ps'\]"),
        ({"TF_CONFIG": tf_config({"worker": ["a:1"]}, kind="evaluator")}, r"names the jobs \['evaluator'\]"),
        ({"SLURM_PROCID": "0"}, "Slurm's variables describe no cluster: .*; start the script by srun"),
        ({"KERAS_RECOMPUTE_WORKERS": "2"}, "KERAS_RECOMPUTE_WORKERS is set, and KERAS_RECOMPUTE_SERVICE is not"),
        (
            {"KERAS_RECOMPUTE_WORKERS": "2", "KERAS_RECOMPUTE_SERVICE": "s", "JOB_COMPLETION_INDEX": "2"},
            "KERAS_RECOMPUTE_WORKERS=2 and JOB_COMPLETION_INDEX=2",
        ),
    ],
)
def test_a_cluster_that_cannot_work_is_refused(monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=said):
        find_cluster()
