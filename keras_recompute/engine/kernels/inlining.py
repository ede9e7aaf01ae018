"""Inlining of functions that XLA would compile on their own, so that passes see inside.

For XLA. In a program that XLA compiles, a ``tf.function`` with ``jit_compile=True`` is a call that
no pass looks into. Keras writes grouped convolutions this way, since TensorFlow has no kernels for
them. In a branch, where sections are, they had the form that XLA:CPU is slow with (see
``convolutions``).

What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ...seams.tensorflow.functions import inline_jit_calls


def inline_compiled_calls() -> AbstractContextManager[None]:
    """Return the context in which a function is traced with the bodies of such calls instead."""
    return inline_jit_calls()
