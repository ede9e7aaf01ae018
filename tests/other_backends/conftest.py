"""Tests of Keras's other backends, which run in environments without TensorFlow:
``KERAS_BACKEND=jax python3 -m pytest tests/other_backends``, and the same with ``torch``.
"""

import os

import pytest

# The tests expect programs and data of a CPU, so they run there even if there is a GPU. Set these
# variables, as to JAX_PLATFORMS=cuda, to run them on another device.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

BACKEND = os.environ.get("KERAS_BACKEND")
_OF_OTHERS = {"jax": ["test_torch_*.py"], "torch": ["test_jax_*.py"]}
collect_ignore_glob = _OF_OTHERS.get(BACKEND, ["test_*.py"])


@pytest.fixture
def backend():
    """The backend that the tests run on."""
    return BACKEND
