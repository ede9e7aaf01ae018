"""Keras callbacks of the example's training: each does one thing at the end of an update.

Imported once TensorFlow is loaded. Runs on Python 3.8 beside the Poplar SDK.

None of Keras's own callbacks does the same. TerminateOnNaN sees the running mean of the loss, and
not the gradient's norm. BackupAndRestore keeps one backup, and ModelCheckpoint writes the model of
sections; neither knows a position in the data, figures or digests. TensorBoard writes the running
mean too, and ProgbarLogger and CSVLogger begin again with each epoch or write once in it.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import tensorflow as tf

from keras_recompute.liveness.process import resident_bytes

from .data import Text, validation_dataset
from .divergence import require_finite
from .event_log import Log
from .run_record import RunRecord
from .run_report import bits_per_byte
from .saves import Save, write_save

_VALIDATED = 8  # microbatches of the text that is held back, at least


class UpdateRecorder(tf.keras.callbacks.Callback):
    """Records the figures of each update, shows them, and ends a training that diverged."""

    def __init__(self, record: RunRecord, show: Callable[[int, dict[str, Any]], None]) -> None:
        super().__init__()
        self._record, self._show = record, show

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch  # of the epoch, while updates are counted from the first run on
        record, elapsed = self._record, time.perf_counter() - self._began
        # The stand-in records losses; Graphcore's API has running means only.
        of_model = getattr(self.model, "training_record", None)
        loss = of_model.losses[-1] if of_model else float(logs["loss"])
        norm = of_model.gradient_norms[-1] if of_model else None
        record.add_update(loss=loss, norm=norm, elapsed_seconds=elapsed)
        self._show(record.updates, _figures_of_last_update(record))
        require_finite(record.updates, record.options, loss=loss, norm=norm)


def _figures_of_last_update(record: RunRecord) -> dict[str, Any]:
    options, loss, step_seconds = record.options, record.losses[-1], record.seconds[-1]
    tokens = options.batch_size * options.seq_len / step_seconds
    return {
        "loss": loss,
        "bits_per_byte": bits_per_byte(loss) if options.is_text else None,
        "step_seconds": step_seconds,
        "tokens_per_second": tokens if options.is_text else None,
        "resident_bytes": resident_bytes(),
    }


class Validation(tf.keras.callbacks.Callback):
    """Computes the loss of the held-back text after each epoch and after the last update."""

    def __init__(
        self, record: RunRecord, text: Text, say: Callable[[str], None], log: Log | None
    ) -> None:
        super().__init__()
        self._record, self._text, self._say, self._log = record, text, say, log

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        record, options = self._record, self._record.options
        if not record.is_due(options.steps_per_epoch // options.gradient_accumulation):
            return
        steps = -(-_VALIDATED // options.gradient_accumulation) * options.gradient_accumulation
        data = validation_dataset(tf, options, self._text)
        found = self.model.evaluate(data, steps=steps, verbose=0, return_dict=True)
        loss = float(found["loss"])
        require_finite(record.updates, options, validation_loss=loss)
        record.validation.append(
            {
                "update": record.updates,
                "loss": loss,
                "trained_seconds": record.trained_seconds,
            }
        )
        bits = bits_per_byte(loss)
        self._say(f"validation after update {record.updates}: {bits:.3f} bits per byte")
        if self._log:
            figures = {"validation_loss": loss, "validation_bits_per_byte": bits}
            self._log.add(record.updates, figures)


class Saving(tf.keras.callbacks.Callback):
    """Saves network, optimiser and figures after the updates at which that is due.

    ``settings`` are the options that a resumed run must share. Raises SaveError.
    """

    def __init__(self, record: RunRecord, settings: dict[str, Any]) -> None:
        from .network import plain_network

        super().__init__()
        self._record, self._settings = record, settings
        # Made outside of the strategy's scope, in which models become pipelines.
        self._network = plain_network(record.options)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        from .network import store

        del batch, logs
        record, options = self._record, self._record.options
        if not record.is_due(options.save_every):
            return
        assert options.save is not None
        state = {
            "updates": record.updates,
            "settings": self._settings,
            **record.saved_figures(),
        }
        path = write_save(
            options.save,
            state,
            lambda folder: store(self.model, self._network, folder),
            keep=options.keep,
        )
        record.saved = Save(path, state)
