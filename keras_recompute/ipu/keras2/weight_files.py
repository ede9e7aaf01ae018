"""HDF5 weight files under any name; Keras 3 requires ``.weights.h5``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import keras

from ...seams.keras.patched_methods import patch_method

_ENDING = ".weights.h5"
_OF_KERAS_3 = (_ENDING, ".weights.json", ".keras")


@contextmanager
def accept_any_weight_file_name() -> Iterator[None]:
    """Accept any file name, as in ``save_weights("weights.hd5")``.

    The file has Keras 3's format. Files that Keras 2 wrote are loaded too.
    """
    with patch_method(keras.Model, "save_weights", _save), patch_method(
        keras.Model, "load_weights", _load
    ):
        yield


def _save(
    plain: Callable[..., Any], model: Any, filepath: Any, overwrite: bool = True, **kwargs: Any
) -> Any:
    """Save under a name that Keras 3 accepts, then move the file to ``filepath``."""
    path = os.fspath(filepath)
    if path.endswith(_OF_KERAS_3):
        return plain(model, filepath, overwrite=overwrite, **kwargs)
    if not overwrite and os.path.exists(path):
        raise FileExistsError(
            f"save_weights({path!r}, overwrite=False): the file exists already. Remove it, or "
            "choose another name"
        )
    # It is in the same file system as the file, which os.replace requires.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path) or ".") as folder:
        temporary = os.path.join(folder, f"named{_ENDING}")
        plain(model, temporary, **kwargs)
        os.replace(temporary, path)
    return None


def _load(plain: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Load through a link with a name that Keras 3 accepts."""
    path = os.fspath(filepath)
    if (
        path.endswith(_OF_KERAS_3)
        or not os.path.exists(path)
        or not h5py.is_hdf5(path)
        or _is_keras2_file(path)
    ):
        return plain(model, filepath, *args, **kwargs)
    with tempfile.TemporaryDirectory() as folder:
        named = os.path.join(folder, f"named{_ENDING}")
        # Keras reads the format from the name.
        os.symlink(os.path.abspath(path), named)
        return plain(model, named, *args, **kwargs)


def _is_keras2_file(path: str) -> bool:
    """Return whether Keras 2 wrote the file at ``path``."""
    with h5py.File(path, "r") as file:
        return "layer_names" in file.attrs or "model_weights" in file
