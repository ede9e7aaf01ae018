"""The target of a program: the compiler that runs it, and the passes that make its saving real there.

The mechanism (trace, join, partition, check, lower) is right for every compiler without any pass, only larger or slower. A
target is a value: it is looked up where a function is traced and handed on with the trace, and again where something is
written into a graph outside of a trace, as loops and fences are. ``leaving_out`` switches passes off, to measure them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import tensorflow as tf

from ..errors import InvalidArgumentError
from ..seams.tensorflow.xla import is_for_xla

# Pass -> what it does (and where). All are for XLA; those of ON_CPU for its CPU backend alone, as far as it can be told. What
# each is worth is in benchmarks/NOTES.md ("What each pass is worth"), measured by benchmarks/passes.py.
PASSES = {
    "order": "gradients of a layer's weights finished before back-propagation goes on to the next layer (scheduling)",
    "staging": "a backward program in two stages, the second of which makes cheap values again (partition, min_cut)",
    "prevent_cse": "operands of products made apart from arithmetic on the same values, so that neither is kept (prevent_cse)",
    "late_zeros": "large zeros written so that TensorFlow does not make constants of them before XLA compiles",
    "chosen_stacks": "tensors chosen inside a loop instead of stacked in front of it (sinking)",
    "shared_tracebacks": "one traceback for all operations of a call, which TensorFlow writes out for XLA (tracebacks)",
    "convolutions": "convolutions in the layout of XLA:CPU's fast kernel, found only in the entry otherwise (convolutions)",
    "poolings": "pooling as sums of slices, without the arrays that XLA:CPU's gradient of it makes (poolings)",
}
ON_CPU = ("convolutions", "poolings")

_left_out: ContextVar[frozenset[str]] = ContextVar("passes that are left out", default=frozenset())


@dataclass(frozen=True)
class Target:
    """A compiler, ``tensorflow`` (operation by operation) or ``xla``, and the names of the passes for it."""

    compiler: str
    passes: frozenset[str] = frozenset()

    @property
    def is_xla(self) -> bool:
        """Whether programs are compiled by XLA, in which case its operations exist."""
        return self.compiler == "xla"


TENSORFLOW = Target("tensorflow")


def target_now() -> Target:
    """Return the target of the graph under construction: XLA if it is traced for ``jit_compile=True``."""
    return _xla(_left_out.get()) if is_for_xla(tf.compat.v1.get_default_graph()) else TENSORFLOW


@contextmanager
def leaving_out(*passes: str) -> Iterator[None]:
    """Trace and write without ``passes`` inside. Raises InvalidArgumentError for a name that no pass has."""
    unknown = sorted(set(passes) - PASSES.keys())
    if unknown:
        raise InvalidArgumentError(f"leaving_out: there is no pass {unknown[0]!r}; there are {', '.join(PASSES)}")
    token = _left_out.set(frozenset(passes))
    try:
        yield
    finally:
        _left_out.reset(token)


@functools.cache
def _xla(left_out: frozenset[str]) -> Target:
    is_on_cpu = all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
    return Target("xla", frozenset(name for name in PASSES if name not in left_out and (is_on_cpu or name not in ON_CPU)))
