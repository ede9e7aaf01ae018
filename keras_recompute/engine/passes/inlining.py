"""Functions that XLA is to compile on their own are written out, so that the passes see what they compute.

For XLA. A ``tf.function`` with ``jit_compile=True`` in a program that XLA compiles anyway is a call that no pass looks into.
Keras writes convolutions in groups so, since TensorFlow's own kernels do not have them: in a branch, where sections stand, they
were in the form that XLA:CPU is slow with (see ``convolutions``).

What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ...seams.tensorflow.functions import inline_jit_calls


def inline_compiled_calls() -> AbstractContextManager[None]:
    """Return the context in which a function is traced with what such functions compute in the place of calls of them."""
    return inline_jit_calls()
