"""Training of the example: a model is fitted to its data, with callbacks that record each update.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .arguments import Options
from .data import Text, make_dataset
from .event_log import Log
from .execution_memory import measure_execution
from .memory_check import check_fits
from .model_builder import BuiltModel
from .program_needs import needed_bytes
from .progress import Progress
from .resumption import resume_settings
from .run_record import RunRecord
from .worker_processes import ALONE, WorkerShare


def fit(
    built: BuiltModel,
    record: RunRecord,
    *,
    requested: Options,
    text: Text | None,
    progress: Progress,
    share: WorkerShare = ALONE,
) -> None:
    """Train a model, from the last update of ``record`` on, with a line of progress per update.

    ``requested`` are the options of all processes together; this one computes its ``share``.
    Raises InvalidArgumentError if this machine lacks the memory.
    """
    import tensorflow as tf

    options, done = record.options, record.updates
    if record.program:
        check_fits(needed_bytes(record.program, options), options)
    epochs, steps = options.epochs, options.steps_per_epoch
    if record.resumed:
        from .network import restore

        restore(built.model, record.resumed)
        progress.say(f"going on from {record.resumed.path}")
        epochs, steps = 1, (options.updates - done) * options.gradient_accumulation
    built.model.around_execution = partial(measure_execution, record)
    settings = None
    if options.save and not share.number:  # of several workers, the first one saves
        settings = resume_settings(requested, text)
    callbacks = _callbacks(record, text=text, progress=progress, settings=settings)
    first = done * requested.gradient_accumulation
    data = share.data(make_dataset(tf, requested, text, first=first))
    progress.begin(options.updates, done=done)
    try:
        with built.strategy.scope():
            built.model.fit(
                data,
                epochs=epochs,
                steps_per_epoch=steps,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
            )
    except tf.errors.OpError as error:
        if text and text.failures:
            raise text.failures[0] from error
        raise
    finally:
        progress.stop()


def _callbacks(
    record: RunRecord, *, text: Text | None, progress: Progress, settings: dict[str, Any] | None
) -> list[Any]:
    """Return the callbacks in the order in which they act; ``settings`` are those of saves."""
    import tensorflow as tf

    from .callbacks import Saving, UpdateRecorder, Validation

    options = record.options
    log = Log(tf, options.log) if options.log else None
    if log and record.program:
        log.add_program(record.updates, record.program)

    def show(done: int, figures: dict[str, Any]) -> None:
        progress.update(done, options.updates, figures)
        if log:
            log.add(done, figures)

    callbacks: list[Any] = [UpdateRecorder(record, show)]
    if options.validation and text:
        callbacks.append(Validation(record, text, progress.say, log))
    if settings:
        callbacks.append(Saving(record, settings))
    return callbacks
