"""Features by backend: the table in the documents, and what a backend lacks."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_recompute
from keras_recompute import keras_backend
from keras_recompute.errors import UnsupportedError
from keras_recompute.keras_backend import FEATURES, JAX, TENSORFLOW, TORCH, current_backend, require

ROOT = Path(__file__).parents[1]


def test_the_guide_has_the_same_table():
    text = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+)` \| (yes|no) \| (yes|no) \| (yes|no) \|$", text, re.MULTILINE)
    wanted = []
    for name, backends in FEATURES.items():
        answers = ["yes" if each in backends else "no" for each in (TENSORFLOW, JAX, TORCH)]
        wanted.append((name, *answers))
    assert rows == wanted


def test_every_public_name_that_needs_a_backend_is_in_the_table():
    of_no_backend = {"errors", "layers", "liveness", "models", "planning", "report"}
    assert set(keras_recompute.__all__) - of_no_backend <= FEATURES.keys()


@pytest.mark.parametrize("backend", [JAX, TORCH])
@pytest.mark.parametrize("feature", FEATURES)
def test_what_a_backend_lacks_is_refused(feature, backend, monkeypatch):
    monkeypatch.setattr(keras_backend, "current_backend", lambda: backend)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # all are installed
    if backend in FEATURES[feature]:
        require(feature)
        return
    with pytest.raises(UnsupportedError, match=r"backend, which has Model, Recomputation") as info:
        require(feature)
    assert f"keras_recompute.{feature} is not available on" in str(info.value)


@pytest.mark.parametrize(
    ("variable", "file", "backend"),
    [
        (None, None, TENSORFLOW),
        ("jax", None, JAX),
        (None, '{"backend": "torch"}', TORCH),
        ("tensorflow", '{"backend": "torch"}', TENSORFLOW),
        (None, "not a configuration", TENSORFLOW),
        (None, "[]", TENSORFLOW),
    ],
)
def test_the_backend_is_known_before_keras_is_loaded(variable, file, backend, tmp_path):
    if file is not None:
        (tmp_path / "keras.json").write_text(file)
    environment = {**os.environ, "KERAS_HOME": str(tmp_path)}
    environment.pop("KERAS_BACKEND", None)
    if variable is not None:
        environment["KERAS_BACKEND"] = variable
    program = (
        "import sys; from keras_recompute.keras_backend import current_backend; "
        "print(current_backend(), 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [backend, "False"]


def test_a_backend_that_is_not_installed_is_named_in_one_line():
    program = (
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: name == 'torch' or None\n"
        "import keras_recompute as kr\n"
        "try:\n    kr.Model\n"
        "except kr.errors.UnsupportedError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "Keras's backend is 'jax', and JAX is not installed: pip install \"keras-recompute[jax]\", "
        "or set KERAS_BACKEND to torch\n"
    )


def test_here_it_is_tensorflow():
    assert current_backend() == TENSORFLOW


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is installed")
def test_the_example_is_refused_at_once_without_its_backend():
    done = subprocess.run(
        [sys.executable, "recompute_lstm.py", "--checkpoints", "7"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = (
        "recompute_lstm.py: Keras's backend is 'jax', and JAX is not installed: "
        'pip install "keras-recompute[jax]", or set KERAS_BACKEND to tensorflow'
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, wanted)
