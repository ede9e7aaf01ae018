"""Tests of Keras's other backends, which run in environments without TensorFlow:
``KERAS_BACKEND=jax python3 -m pytest tests/other_backends``, and the same with ``torch``.
"""

import os

import pytest

# What is expected of programs and of where data is holds on a CPU, so they run there, whatever
# device is here. Where the variables are set, as to JAX_PLATFORMS=cuda, that device is taken.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

BACKEND = os.environ.get("KERAS_BACKEND")
_OF_OTHERS = {"jax": ["test_torch_*.py"], "torch": ["test_jax_*.py"]}
collect_ignore_glob = _OF_OTHERS.get(BACKEND, ["test_*.py"])


@pytest.fixture
def backend():
    """The backend that the tests run on."""
    return BACKEND
