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


# TensorFlow asks where Keras is before anything imports it.
REGISTERED = """
import sys
import keras_recompute, tensorflow, keras
assert keras.saving.get_registered_object("keras_recompute>RecomputationCheckpoint")
assert not [each for each in sys.meta_path if "recompute" in str(each)]
"""


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=False,
        text=True,
    )


def test_classes_are_registered_with_whatever_imports_keras():
    done = run(REGISTERED)
    assert done.returncode == 0, done.stderr


def test_the_import_sets_nothing_and_need_not_come_first():
    done = run(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "RecomputeWarning" not in done.stderr
