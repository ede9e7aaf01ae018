"""``BackupAndRestore`` for several processes: one writes, and each backup appears whole.

Keras writes weights and epoch into two files in place. A process that is killed meanwhile leaves
files that do not match or cannot be read, and several processes overwrite each other's. Keras
also leaves out the states of random generators, so that dropout restarts.
"""

from __future__ import annotations

import io
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_files = tf.io.gfile


class AtomicBackup(keras.callbacks.BackupAndRestore):
    """``callback`` with each backup in a folder of its own, which is renamed once it is complete.

    ``writes`` says whether this process writes the backups; every process reads them.
    """

    def __init__(self, callback: keras.callbacks.BackupAndRestore, *, writes: bool) -> None:
        super().__init__(
            callback.backup_dir,
            callback.save_freq,
            delete_checkpoint=callback.delete_checkpoint and writes,
        )
        self._writes = writes

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras's
        complete = self._complete()
        if not complete:
            return
        self._keep_in(complete[-1])
        self._load_model()
        with _files.GFile(self._random_states_path, "rb") as file:
            states = np.load(io.BytesIO(file.read()))
        for number, state in enumerate(_random_states(self.model)):
            state.assign(states[str(number)])

    def on_train_end(self, logs: Any = None) -> None:
        if self._writes:
            super().on_train_end(logs)

    def _save_model(self) -> None:
        if not self._writes:
            return
        older = self._complete()
        unfinished = _join(self.backup_dir, "unfinished")
        if _files.exists(unfinished):
            _files.rmtree(unfinished)
        _files.makedirs(unfinished)
        self._keep_in("unfinished")
        super()._save_model()
        states = {
            str(number): state.numpy() for number, state in enumerate(_random_states(self.model))
        }
        content = io.BytesIO()
        np.savez(content, **states)
        with _files.GFile(self._random_states_path, "wb") as file:
            file.write(content.getvalue())
        number = 1 + (int(older[-1]) if older else 0)
        _files.rename(unfinished, _join(self.backup_dir, str(number)))
        for name in older:
            _files.rmtree(_join(self.backup_dir, name))

    def _keep_in(self, folder: str) -> None:
        self._weights_path = _join(self.backup_dir, folder, "latest.weights.h5")
        self._training_metadata_path = _join(self.backup_dir, folder, "training_metadata.json")
        self._random_states_path = _join(self.backup_dir, folder, "random_states.npz")

    def _complete(self) -> list[str]:
        """Return the names of the complete backups, oldest first."""
        names = _files.listdir(self.backup_dir) if _files.exists(self.backup_dir) else []
        return sorted((name.rstrip("/") for name in names if name.rstrip("/").isdigit()), key=int)


def _random_states(model: keras.Model) -> list[Any]:
    """Return the states of the generators of random numbers in ``model``, in its order."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


def _join(*parts: Any) -> str:
    return "/".join(str(part).rstrip("/") for part in parts)
