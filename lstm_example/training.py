"""Training of the example: the backend's models, fitted to data by callbacks that record updates.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from typing import Any

from keras_recompute.keras_backend import TENSORFLOW, current_backend

from .data import Text, microbatches, validation_batches
from .event_log import Log
from .memory_check import check_fits, needed_bytes
from .model_builder import BuildModel, ModelBuilder
from .progress import Progress
from .resumption import describe_resumption, resume_settings
from .run_record import RunRecord

_VALIDATED = 8  # microbatches of the text that is held back, at least


def load_builder(record: RunRecord, build_model: BuildModel, progress: Progress) -> ModelBuilder:
    """Load the framework of Keras's backend, and return what builds models with it.

    ``build_model`` is for Graphcore's API, which TensorFlow alone has.
    """
    if current_backend() == TENSORFLOW:
        from .graphcore_models import GraphcoreBuilder

        return GraphcoreBuilder(record, progress, build_model)
    from .keras_models import KerasBuilder

    return KerasBuilder(record, progress)


def fit(builder: ModelBuilder, text: Text | None) -> None:
    """Train the model, from the last update of its record on, with a line of progress per update.

    Raises InvalidArgumentError if this machine lacks the memory.
    """
    model, record, progress = builder.model, builder.record, builder.progress
    options, share, done = record.options, record.share, record.updates
    if record.program:
        check_fits(needed_bytes(record.program, options), options)
    if record.resumed:
        from .network import restore

        restore(model, record.resumed)
        progress.say(describe_resumption(record.resumed, record.versions))
    callbacks = _callbacks(builder, text)
    first = done * share.requested.gradient_accumulation
    data = share.data(microbatches(share.requested, text, first=first))
    progress.begin(options.updates, done=done)
    try:
        with builder.scope():
            model.fit(
                builder.data(data),
                # Each update is an epoch to Keras, which then has its mean loss.
                initial_epoch=done,
                epochs=options.updates,
                steps_per_epoch=options.gradient_accumulation,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
                **_validation(record, text),
            )
    except Exception:
        if text and text.failures:
            raise text.failures[0] from None
        raise
    finally:
        progress.stop()


def _validation(record: RunRecord, text: Text | None) -> dict[str, Any]:
    """Return the options of ``fit`` for ``--validation``."""
    options = record.options
    if not options.validation or text is None:
        return {}
    per_update = options.gradient_accumulation
    count = -(-_VALIDATED // per_update) * per_update
    return {
        "validation_data": validation_batches(options, text, count),
        "validation_batch_size": options.batch_size,
        "validation_freq": options.steps_per_epoch // per_update,
    }


def _callbacks(builder: ModelBuilder, text: Text | None) -> list[Any]:
    """Return what is done after each update, in this order."""
    from .callbacks import Saving, UpdateRecorder

    record, options = builder.record, builder.options
    log = Log(options.log) if options.log else None
    if log and record.program:
        log.add_program(record.updates, record.program)

    callbacks: list[Any] = [UpdateRecorder(builder, log)]
    if options.save and not record.share.number:  # of several workers, the first one saves
        settings = resume_settings(record.share.requested, text)
        callbacks.append(Saving(record, settings))
    return callbacks
