"""How the processes of a cluster meet, tried with threads: who is missing, who differs, and what is
in the way.
"""

import contextlib
import os
import socket
import threading

import pytest

from keras_recompute.distribute.cluster import Cluster
from keras_recompute.distribute.launcher import _free_ports
from keras_recompute.distribute.rendezvous import rendezvous
from keras_recompute.errors import ClusterError, InvalidArgumentError

from .running import LAUNCHER, ROOT, run

JOINS = """
import json, os
from keras_recompute.distribute import join
with join(heartbeat_seconds=10 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]):
    pass
"""


def met(facts, *, wait_seconds=20.0, disturb=lambda _: None):
    """Return what each of the workers that are given ``facts`` came to: nothing, or the text of its
    error.
    """
    addresses = tuple(f"127.0.0.1:{port}" for port in _free_ports(len(facts)))
    found = dict.fromkeys(number for number, own in enumerate(facts) if own is not None)

    def worker(number):
        try:
            rendezvous(
                Cluster(addresses, number, None, "TF_CONFIG"),
                facts[number],
                wait_seconds=wait_seconds,
            )
        except Exception as error:
            found[number] = f"{type(error).__name__}: {error}".replace(
                addresses[-1], "ADDRESS"
            ).replace(addresses[0], "FIRST")

    threads = [threading.Thread(target=worker, args=(number,)) for number in reversed(found)]
    for thread in threads:
        thread.start()
        disturb(int(addresses[0].rpartition(":")[2]))
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_that_say_the_same_go_on(workers):
    assert met([{"seed": 1, "text": None}] * workers) == dict.fromkeys(range(workers))


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "has b 3 where worker 0 has 2"),
        ({"a": 1}, {"a": 1, "c": [1, "x"]}, "has c [1, 'x'] where worker 0 has None"),
    ],
)
def test_what_differs_is_named_on_all_sides(ours, theirs, difference):
    said = f"ClusterError: worker 1 of 2 (ADDRESS) {difference}: start all workers alike"
    assert met([ours, theirs]) == {0: said, 1: said}


@pytest.mark.long
def test_workers_whose_heartbeats_differ_are_refused(tmp_path):
    """A worker with a slower heartbeat than the first expects was taken for lost in training."""
    (tmp_path / "joins.py").write_text(JOINS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the script stands elsewhere
    done = run(tmp_path / "joins.py", launcher=[*LAUNCHER, "--workers", "2"], env=environment)
    assert done.returncode == 1
    assert (
        done.stderr.count("has heartbeat_seconds 11 where worker 0 has 10: start all workers alike")
        == 2
    )


@pytest.mark.long
def test_who_does_not_come_is_named_in_time():
    found = met([{}, {}, None], wait_seconds=4)
    assert found == dict.fromkeys(
        range(2), "ClusterError: worker 2 of 3 (ADDRESS) did not connect within 4 s"
    )
    assert met([None, {}], wait_seconds=0.5) == {
        1: "ClusterError: worker 0 of 2 (FIRST) did not connect within 0.5 s"
    }


NO_WORKER_SAYS = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"[1]\n",
    b"",
    b"[" * 100_000 + b"\n",
    b"[[], 2, {}]\n",
    b"[1, 2, 3]\n",
)


def test_strangers_at_the_port_are_sent_away():
    def disturb(port):
        for message in NO_WORKER_SAYS:
            with contextlib.suppress(OSError), socket.create_connection(
                ("127.0.0.1", port), timeout=1
            ) as connection:
                connection.sendall(message)

    assert met([{}, {}], disturb=disturb) == {0: None, 1: None}


def test_a_port_that_is_taken_is_an_error_at_once():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        addresses = ("127.0.0.1:1", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(
            InvalidArgumentError,
            match=r"TF_CONFIG gives worker 1 of 2 .* a port that it cannot listen at",
        ):
            rendezvous(Cluster(addresses, 1, None, "TF_CONFIG"), {}, wait_seconds=5)


def test_two_workers_of_one_number_are_an_error():
    addresses = tuple(f"127.0.0.1:{port}" for port in _free_ports(3))
    errors = []

    def worker(number, own):
        try:
            rendezvous(
                Cluster((*addresses[:1], own, *addresses[2:]), number, None, "TF_CONFIG"),
                {},
                wait_seconds=20,
            )
        except ClusterError as error:
            errors.append(str(error))

    threads = [
        threading.Thread(target=worker, args=each)
        for each in ((0, addresses[1]), (1, addresses[1]), (1, addresses[2]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 3
    assert set(errors) == {"two processes claim to be worker 1"}
