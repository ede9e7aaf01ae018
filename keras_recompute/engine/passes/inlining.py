"""Functions that XLA is to compile on their own are written out, so that the passes see what they compute.

For XLA. A ``tf.function`` with ``jit_compile=True`` in a program that XLA compiles anyway is a call that no pass looks into.
Keras writes convolutions in groups so, since TensorFlow's own kernels do not have them: in a branch, where sections stand, they
were in the form that XLA:CPU is slow with (see ``convolutions``).

What it gains: "Convolutions in sections" in benchmarks/NOTES.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ...seams.tensorflow.functions import compiled_calls_inlined

Result = TypeVar("Result")


def without_compiled_calls(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``function``, which is about to be traced, with what such functions compute in the place of calls of them."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        with compiled_calls_inlined():
            return function(*args, **kwargs)

    return run
