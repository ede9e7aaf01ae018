"""Memory that a training program needs, and the capacity that it is compared with.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from typing import Callable

from keras_recompute.errors import DoesNotFitError
from keras_recompute.liveness import Program
from keras_recompute.liveness.device_compilers import find_device

from .options import Options

_IPU_BYTES = 1472 * 624 * 1024  # the memory of one Mk2 IPU: tiles x KiB per tile


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
