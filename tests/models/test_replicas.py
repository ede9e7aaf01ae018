"""Training under tf.distribute.MirroredStrategy."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_two_replicas_train_to_the_numbers_of_the_plain_model():
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.two_replicas"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("2 replicas")
