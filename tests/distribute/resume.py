"""A program of a worker that trains with backups, and may kill itself: ``resume FOLDER WORKER
UPDATE``, once per folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import keras_recompute as kr
from keras_recompute.distribute import join
from keras_recompute.errors import RecomputeError

EPOCHS, UPDATES_PER_EPOCH, BATCH = 4, 5, 8


class Kill(keras.callbacks.Callback):
    """Ends this process as a machine that fails does, at an update, if it is the worker that is
    meant.
    """

    def __init__(self, mark: Path, at: int) -> None:
        super().__init__()
        self.mark, self.at = mark, at

    def on_train_batch_end(self, *_, **__) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self.at and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, victim: str, at: str) -> None:
    with join(alike={"folder": folder}, wait_seconds=120, heartbeat_seconds=10) as strategy:
        number = strategy.cluster_resolver.task_id
        keras.utils.set_random_seed(0)
        with strategy.scope():
            x = inputs = keras.Input((8,))
            for _ in range(3):
                x = kr.RecomputationCheckpoint()(
                    keras.layers.Dropout(0.2)(keras.layers.Dense(8, "tanh")(x))
                )
            model = kr.Model(inputs, keras.layers.Dense(1)(x))
            model.compile("adam", "mse", jit_compile=True)
        x = np.random.default_rng(0).normal(size=(BATCH * UPDATES_PER_EPOCH, 8)).astype(np.float32)
        written = Path(folder)
        callbacks = [
            keras.callbacks.BackupAndRestore(written / "backup"),
            keras.callbacks.ModelCheckpoint(written / "model.keras"),
            keras.callbacks.CSVLogger(written / "log.csv", append=True),
            *([Kill(written / "killed", int(at))] if number == int(victim) else []),
        ]
        history = model.fit(
            x,
            x[:, :1],
            batch_size=BATCH,
            shuffle=False,
            epochs=EPOCHS,
            verbose=0,
            callbacks=callbacks,
        ).history
        weights = [float(np.abs(w).sum()) for w in model.get_weights()]
    print(json.dumps({"losses": history["loss"], "weights": weights}), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RecomputeError as error:
        sys.exit(str(error))
