"""Importing the package changes nothing for other models of the process."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, warnings
before = dict(os.environ)
import tensorflow as tf
started = tf.function(lambda x: x + 1.0, jit_compile=True)(tf.constant(1.0))
after_tensorflow = dict(os.environ)
warnings.simplefilter("error", RuntimeWarning)
import keras_recompute
assert os.environ == after_tensorflow, set(os.environ.items()) ^ set(after_tensorflow.items())
assert os.environ.get("XLA_FLAGS") == before.get("XLA_FLAGS")
"""


def test_the_import_sets_nothing_and_need_not_come_first():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "RecomputeWarning" not in done.stderr
