"""TensorFlow's start-up lines: hidden by our own commands, shown where the user asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Writes to the descriptor, as TensorFlow's libraries do, whatever level is set.
TENSORFLOW = """
import os
os.write(2, b'''{lines}
''')
{then}
class config:
    list_physical_devices = staticmethod(lambda: os.write(2, b"{no_gpu}"))
"""
ABSL = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
INFORMATION = "I0000 00:00:1795708137.511396    2529 port.cc:153] oneDNN custom operations are on."
CPU = "To enable the following instructions: AVX2, rebuild TensorFlow."
DATED = "2024-11-26 15:47:54.123456: I tensorflow/core/util/port.cc:153] oneDNN is on."
CUDA = "E0000 00:00:17.1 9 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting ..."
STARTUP = (ABSL, INFORMATION, CPU, DATED, CUDA)
NO_GPU = "E0000 00:00:17.1 9 cuda_platform.cc:51] failed call to cuInit: no driver"
ERROR = "E0000 00:00:17.1 9 loader.cc:1] a library is damaged"
OTHER = "UserWarning: your version of something is old"
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from keras_recompute.startup_lines import load_tensorflow
load_tensorflow()
print("after", file=sys.stderr)
"""


def written(tmp_path, *lines, then="", level=None, program=PROGRAM):
    """Return what a program writes to standard error that loads a TensorFlow with these lines."""
    (tmp_path / "tensorflow.py").write_text(
        TENSORFLOW.format(lines="\n".join(lines), then=then, no_gpu=NO_GPU + r"\n")
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": level or ""}
    if level is None:
        del environment["TF_CPP_MIN_LOG_LEVEL"]
    done = subprocess.run(
        [sys.executable, "-c", program.format(root=str(ROOT))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.splitlines()


def test_startup_lines_are_hidden_and_all_others_shown(tmp_path):
    said = written(tmp_path, *STARTUP, OTHER, ERROR)
    assert said == [OTHER, ERROR, "after"]


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("0", [*STARTUP, NO_GPU]),
        ("1", [CUDA, NO_GPU]),
        ("3", []),
        ("any", [*STARTUP, NO_GPU]),
    ],
)
def test_a_level_that_the_user_has_set_wins(tmp_path, level, shown):
    assert written(tmp_path, *STARTUP, level=level) == [*shown, "after"]


def test_the_last_words_of_a_crash_are_shown(tmp_path):
    crash = written(tmp_path, INFORMATION, "F0000 this processor lacks AVX", then="os.abort()")
    assert crash == ["F0000 this processor lacks AVX"]


def test_a_failed_import_is_shown(tmp_path):
    said = written(tmp_path, INFORMATION, then="raise ImportError('no such library')")
    assert said[-1] == "ImportError: no such library"
    assert INFORMATION not in said


def test_a_closed_standard_error_is_no_failure(tmp_path):
    program = "import os\nos.close(2)\n" + PROGRAM.replace(
        'print("after", file=sys.stderr)', "os.write(1, b'done')"
    )
    (tmp_path / "tensorflow.py").write_text(
        "class config:\n    list_physical_devices = staticmethod(lambda: None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program.format(root=str(ROOT))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.stdout == b"done"


@pytest.mark.long
def test_the_installed_tensorflow_says_nothing():
    program = PROGRAM + "import tensorflow as tf\ntf.constant(1) + 1\n"
    environment = {name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program.format(root=str(ROOT))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines() == ["after"]
