"""Keras callbacks of the example's training. To Keras each update of the optimizer is an epoch.

Imported once Keras is loaded. Runs on Python 3.8 beside the Poplar SDK.

So Keras's own means, validation and numbers of epochs are those of updates. None of its callbacks
does what these do. TerminateOnNaN does not see the gradient's norm. BackupAndRestore keeps one
backup, and ModelCheckpoint writes the model of sections; neither knows figures or digests.
TensorBoard needs TensorFlow, and CSVLogger writes no loss of an update that is saved.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from keras_recompute.errors import RecomputeError
from keras_recompute.keras_backend import keras_of_layers
from keras_recompute.liveness.process import resident_bytes

from .event_log import Log
from .model_builder import ModelBuilder
from .run_record import RunRecord
from .run_report import bits_per_byte
from .saves import Save, write_save

_LONG_SECONDS = 10  # from which a microbatch has a line of its own
Callback: Any = keras_of_layers().callbacks.Callback


class NonFiniteLossError(RecomputeError):
    """The loss or the gradient is not finite any more, so that going on would train nothing."""


class UpdateRecorder(Callback):
    """Records the figures of each update, shows them, and ends a training that diverged."""

    def __init__(self, builder: ModelBuilder, log: Log | None) -> None:
        super().__init__()
        self._builder, self._record, self._log = builder, builder.record, log
        self._seconds, self._measured = 0.0, contextlib.ExitStack()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        # The stand-in measures its program alone, without the stacking of microbatches.
        if not hasattr(self.model, "around_execution"):
            self._measured.enter_context(self._record.measure_execution())
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        seconds = time.perf_counter() - self._began
        self._seconds += seconds
        self._measured.close()
        each = self._record.options.gradient_accumulation
        if seconds > _LONG_SECONDS and batch + 1 < each:
            update = self._record.updates + 1
            self._builder.progress.say(
                f"microbatch {batch + 1}/{each} of update {update}: {seconds:.0f} s"
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch
        record, logs = self._record, logs or {}
        options = record.options
        loss, norm = self._builder.last_update(logs)
        record.add_update(loss=loss, norm=norm, elapsed_seconds=self._seconds)
        self._seconds, done = 0.0, record.updates
        figures = _figures_of_last_update(record)
        self._builder.progress.update(done, options.updates, figures)
        self._write(figures)
        # The gradient shows one update earlier than the loss that the new weights are useless.
        self._require_finite({"the loss": loss, "the norm of the gradient": norm or 0.0})
        if "val_loss" not in logs:
            return
        loss = float(logs["val_loss"])
        self._require_finite({"the loss of the held-back text": loss})
        record.add_validation(loss)
        bits = bits_per_byte(loss)
        self._builder.progress.say(f"validation after update {done}: {bits:.3f} bits per byte")
        self._write({"validation_loss": loss, "validation_bits_per_byte": bits})

    def _require_finite(self, figures: dict[str, float]) -> None:
        done, options = self._record.updates, self._record.options
        for what, value in figures.items():
            if not math.isfinite(value):
                step = done * options.gradient_accumulation
                raise NonFiniteLossError(
                    f"{what} became {value} at update {done} (step {step}): lower --learning-rate "
                    f"from {options.learning_rate:g}"
                )

    def _write(self, figures: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.add(self._record.updates, figures)


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


class Saving(Callback):
    """Saves network, optimiser and figures after the updates at which that is due.

    ``settings`` are the options that a resumed run must share. Raises SaveError.
    """

    def __init__(self, record: RunRecord, settings: dict[str, Any]) -> None:
        from .network import plain_network

        super().__init__()
        self._record, self._settings = record, settings
        # Made outside of the strategy's scope, in which models become pipelines.
        self._network = plain_network(record.options)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        from .network import store

        del epoch, logs
        record, options = self._record, self._record.options
        if not record.is_due(options.save_every):
            return
        assert options.save is not None
        state = {"updates": record.updates, "settings": self._settings, **record.saved_figures()}
        path = write_save(
            options.save,
            state,
            lambda folder: store(self.model, self._network, folder),
            keep=options.keep,
        )
        record.saved = Save(path, state)
