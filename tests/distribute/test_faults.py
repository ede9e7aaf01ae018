"""A worker that is killed: the others end in time and say which one it was; started again, all come
to the same numbers.
"""

import os
import random

import pytest

from .resume import EPOCHS, UPDATES_PER_EPOCH
from .running import LAUNCHER, results, run

LAST = EPOCHS * UPDATES_PER_EPOCH


def trained(folder, victim=-1, at=0, restarts=0):
    folder.mkdir()
    launcher = [*LAUNCHER, "--workers", "2", "--restarts", str(restarts), "-m"]
    return run("tests.distribute.resume", folder, victim, at, launcher=launcher)


def check(tmp_path, undisturbed, victim, at):
    done = trained(tmp_path / f"killed-{victim}-{at}", victim, at, restarts=1)
    found = results(done)
    # The backup is of the end of the epoch before
    epochs_left = EPOCHS - (at - 1) // UPDATES_PER_EPOCH
    for worker in (0, 1):
        (result,) = found[worker]
        assert result["losses"] == undisturbed["losses"][-epochs_left:]
        assert result["weights"] == undisturbed["weights"]
    errors = [
        line for line in done.stderr.splitlines() if "keras_recompute" in line or "was lost" in line
    ]
    assert f"keras_recompute.distribute: worker {victim} of 2 was ended by SIGKILL" in errors
    assert any(
        f"worker {victim} of 2 (127.0.0.1:" in line and "was lost" in line for line in errors
    ), done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    found = results(trained(folder))
    (result,) = found[0]
    assert found[1] == [result]
    return result, folder


@pytest.mark.long
def test_a_killed_worker_is_named_and_training_goes_on_to_the_same_numbers(tmp_path, undisturbed):
    result, folder = undisturbed
    # By the first alone; no backup is left
    assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "model.keras"]
    assert len((folder / "log.csv").read_text().splitlines()) == 1 + EPOCHS
    check(tmp_path, result, 1, UPDATES_PER_EPOCH + 2)


@pytest.mark.long
# The more the longer: KILLS=10
@pytest.mark.parametrize("seed", range(int(os.environ.get("KILLS", "1"))))
def test_a_kill_at_random(tmp_path, undisturbed, seed):
    check(tmp_path, undisturbed[0], seed % 2, random.Random(seed).randint(1, LAST - 1))
