"""Memory that a run needs, predicted and as compiled, and what there is of it.

It is checked before TensorFlow is loaded. Runs on Python 3.8 beside the Poplar SDK.

A system refuses only absurd requests for memory. It promises others beyond what it has, and kills
the process when that is used.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from typing import Callable

from keras_recompute.errors import DoesNotFitError, InvalidArgumentError
from keras_recompute.liveness import Program
from keras_recompute.liveness.device_compilers import find_device
from keras_recompute.liveness.local_device import machine_bytes
from keras_recompute.planning import predicted_peak_bytes
from keras_recompute.sizes import format_bytes

from .data import SYMBOLS, data_bytes, feed_bytes
from .options import Options
from .sequence_plans import SequencePlan, named_plans

_IPU_BYTES = 1472 * 624 * 1024  # the memory of one Mk2 IPU: tiles x KiB per tile
# In errors of JAX, and of PyTorch on a CPU and on a GPU.
_NO_MEMORY = "RESOURCE_EXHAUSTED", "DefaultCPUAllocator: can't allocate", "CUDA out of memory"
_OTHER_RESOURCES = errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE


def check_memory(options: Options) -> None:
    """Raise InvalidArgumentError if the run is predicted to need more memory than there is."""
    if not options.is_for_ipu:  # else the step is in the memory of the IPU
        # The data first, since the prediction takes long for a huge sequence.
        check_fits(0, options)
        check_fits(predicted_step_bytes(options) * (options.workers or 1), options)


def check_fits(step_bytes: int, options: Options) -> None:
    """Raise InvalidArgumentError if this machine's memory cannot hold step and data."""
    there = machine_bytes()
    if there is not None and step_bytes + data_bytes(options) > there:
        raise InvalidArgumentError(
            f"{describe_needs(step_bytes, options)}: lower --batch-size, --seq-len, --units, "
            "--features, --gradient-accumulation or --steps-per-epoch"
        )


def describe_needs(step_bytes: int, options: Options) -> str:
    """Return as text what the run needs and what there is."""
    parts = {"a training step": step_bytes, "its data": data_bytes(options)}
    said = [f"{format_bytes(count)} for {part}" for part, count in parts.items() if count]
    there = machine_bytes()
    has = "" if there is None else f", and this machine has {format_bytes(there)} of memory"
    return f"the run needs {' and '.join(said)}{has}"


def describe_shortage(options: Options) -> str:
    """Return as text what a run needs that ran out of memory."""
    fed = replace(options, compile_only=False, device=None)
    return f"out of memory: {describe_needs(predicted_step_bytes(fed), fed)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` is an out-of-memory error of Python, NumPy or a backend."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return True
    # Without loading TensorFlow: its errors exist only once it is loaded.
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(error, tf.errors.ResourceExhaustedError):
        return False
    # TensorFlow raises the same error for a full disk, a quota or too many open files.
    return not any(os.strerror(code) in str(error) for code in _OTHER_RESOURCES)


def predicted_step_bytes(options: Options) -> int:
    """Return the predicted peak of the largest training step that is certain to run.

    If no plan is named, or none runs, it is that of a single timestep: the weights and the
    optimiser's state.
    """
    plans = [] if options.compile_only else named_plans(options)
    if not plans:
        return predicted_bytes(replace(options, seq_len=1, batch_size=1), SequencePlan(0))
    return max(predicted_bytes(options, plan) for plan in plans)


def predicted_bytes(options: Options, plan: SequencePlan, batch_size: int | None = None) -> int:
    """Return the predicted peak of ``plan``; for a named device, with the fed data."""
    fed = feed_bytes(options, batch_size or options.batch_size) if options.device else 0
    return fed + predicted_peak_bytes(
        cell=options.cell,
        steps=options.seq_len,
        checkpoints=plan.checkpoints,
        levels=plan.levels,
        recompute=plan.recompute,
        batch=batch_size or options.batch_size,
        features=options.features,
        units=options.units,
        outputs=SYMBOLS if options.is_text else 1,
        embedded_symbols=SYMBOLS if options.is_text else 0,
        optimizer_slots=2 if options.is_text else 0,  # Adam's moments
    )


def capacity_of(options: Options) -> tuple[int, str]:
    """Return the memory that the program should fit, and its owner: the named device or an IPU."""
    if options.device is None:
        return _IPU_BYTES, "a Mk2 IPU"
    device = find_device(options.device)
    return device.memory_bytes, f"the {device.title}"


def needed_bytes(program: Program, options: Options) -> int:
    """Return the bytes that ``program`` needs on its device, fed data included."""
    fed = program.input_feed_bytes
    # Nothing is reserved ahead on PyTorch.
    needed = program.needed_bytes or program.peak_bytes + fed
    return needed if options.device else needed - fed


def compiled_needs(options: Options, compile_plan: Callable[[], Program]) -> tuple[int, int]:
    """Return the peak and need of the program that ``compile_plan`` returns.

    Both are the need if the compiler of a device reports that it does not fit.
    """
    try:
        program = compile_plan()
    except DoesNotFitError as error:
        return error.needed_bytes, error.needed_bytes
    return program.peak_bytes, needed_bytes(program, options)
