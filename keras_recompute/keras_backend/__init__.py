"""What depends on Keras's backend: its name, and which features it has.

Each backend has its own way to run sections, behind one interface (``models.section_runner``). What
a backend lacks is refused by name (``require``), never ignored.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

from ..errors import UnsupportedError

TENSORFLOW, JAX, TORCH = "tensorflow", "jax", "torch"
TITLES = {TENSORFLOW: "TensorFlow", JAX: "JAX", TORCH: "PyTorch"}

_ALL = (TENSORFLOW, JAX, TORCH)
# Public names and options, and the backends that have them. Those that are not here need no
# backend, such as ``planning``. docs/backends.md has the same table.
FEATURES = {
    "Model": _ALL,
    "RecomputationCheckpoint": _ALL,
    "TimeSlice": _ALL,
    "checkpointed": _ALL,
    "checkpointed(layers=)": _ALL,
    "checkpointed(sample=)": _ALL,
    "Model.recomputation_levels": (TENSORFLOW,),
    "Model.scan_layers": (TENSORFLOW, JAX),
    "engine": (TENSORFLOW,),
    "plan": _ALL,
    "plan(prove=False)": _ALL,
    "plan(timed=)": (TENSORFLOW,),
    "liveness.profile": _ALL,
    "liveness.compile_program": (TENSORFLOW, JAX),
    "liveness.abstract": _ALL,
    "liveness.capture_fit": (TENSORFLOW,),
    "checkpoint": _ALL,
    "checkpoint_name": _ALL,
    "policies": _ALL,
    "recompute_scope": (TENSORFLOW, TORCH),
    "keep_scope": (TENSORFLOW, TORCH),
    "saved_residuals": _ALL,
    "print_saved_residuals": _ALL,
    "forward_backward": _ALL,
    "print_forward_backward": _ALL,
    "replay_count": _ALL,
    "updates_in_backward": (TENSORFLOW, TORCH),
    "LSTM": _ALL,
    "GRU": _ALL,
    "MultiHeadAttention": _ALL,
    "compat": (TENSORFLOW, TORCH),
    "distribute": (TENSORFLOW,),
    "ipu": (TENSORFLOW,),
}


def current_backend() -> str:
    """Return the name of the backend that Keras runs on, or will run on once it is imported."""
    keras = sys.modules.get("keras")
    # The Poplar SDK's Keras has no other backend.
    if keras is not None and hasattr(keras, "config"):
        return str(keras.config.backend())
    return os.environ.get("KERAS_BACKEND") or _configured_backend()


def _configured_backend() -> str:
    """Return the backend that Keras's configuration file names, as Keras reads it."""
    folder = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(folder, "keras.json"), encoding="utf-8") as file:
            return str(json.load(file).get("backend", TENSORFLOW))
    except (OSError, ValueError, AttributeError):
        return TENSORFLOW


def require(feature: str) -> None:
    """Raise UnsupportedError if Keras's backend lacks ``feature``, a name in FEATURES.

    Or if that backend is not installed.
    """
    backend = current_backend()
    if backend in FEATURES[feature]:
        _require_installed(backend)
        return
    there = [name for name, backends in FEATURES.items() if backend in backends]
    raise UnsupportedError(
        f"keras_recompute.{feature} is not available on Keras's {TITLES.get(backend, backend)} "
        f"backend, which has {', '.join(there) or 'nothing of this package'}. Set "
        "KERAS_BACKEND=tensorflow before Keras is imported"
    )


def _require_installed(backend: str) -> None:
    # Keras imports its backend, so that a loaded Keras has one.
    if "keras" in sys.modules or importlib.util.find_spec(backend) is not None:
        return
    others = [name for name in _ALL if importlib.util.find_spec(name) is not None]
    instead = f", or set KERAS_BACKEND to {' or '.join(others)}" if others else ""
    raise UnsupportedError(
        f"Keras's backend is {backend!r}, and {TITLES[backend]} is not installed: "
        f'pip install "keras-recompute[{backend}]"{instead}'
    )


def keras_of_layers() -> Any:
    """Return Keras 3, or the Keras inside TensorFlow where there is no other: the Poplar SDK's."""
    try:
        keras = importlib.import_module("keras")
        if int(keras.__version__.split(".")[0]) >= 3:
            return keras
    except ImportError:
        pass
    return importlib.import_module("tensorflow").keras
