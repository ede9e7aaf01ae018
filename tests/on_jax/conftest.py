"""Tests of Keras's JAX backend, which run in an environment without TensorFlow:
``KERAS_BACKEND=jax python3 -m pytest tests/on_jax``.
"""

import os

collect_ignore_glob = [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_*.py"]
