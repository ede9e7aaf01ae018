"""Training of the example: a model is fitted to its data, with callbacks that record each update.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .data import Text, make_dataset
from .event_log import Log
from .execution_memory import measure_execution
from .memory_check import check_fits
from .model_builder import ModelBuilder
from .program_needs import needed_bytes
from .progress import Progress
from .resumption import resume_settings
from .run_record import RunRecord


def fit(builder: ModelBuilder, record: RunRecord, text: Text | None, progress: Progress) -> None:
    """Train the model, from the last update of ``record`` on, with a line of progress per update.

    Raises InvalidArgumentError if this machine lacks the memory.
    """
    import tensorflow as tf

    model, options, share, done = builder.model, record.options, record.share, record.updates
    if record.program:
        check_fits(needed_bytes(record.program, options), options)
    epochs, steps = options.epochs, options.steps_per_epoch
    if record.resumed:
        from .network import restore

        restore(model, record.resumed)
        progress.say(f"going on from {record.resumed.path}")
        epochs, steps = 1, (options.updates - done) * options.gradient_accumulation
    model.around_execution = partial(measure_execution, record)
    callbacks = _callbacks(record, text, progress)
    first = done * share.requested.gradient_accumulation
    data = share.data(make_dataset(tf, share.requested, text, first=first))
    progress.begin(options.updates, done=done)
    try:
        with builder.strategy.scope():
            model.fit(
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


def _callbacks(record: RunRecord, text: Text | None, progress: Progress) -> list[Any]:
    """Return what is done after each update, in this order."""
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
    if options.save and not record.share.number:  # of several workers, the first one saves
        settings = resume_settings(record.share.requested, text)
        callbacks.append(Saving(record, settings))
    return callbacks
