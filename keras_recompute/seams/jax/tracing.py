"""What JAX traces: the transformation that runs now, and loops. Seen in JAX 0.10 to 0.12."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters.ad import JVPTrace, JVPTracer, LinearizeTrace, LinearizeTracer
from jax._src.interpreters.batching import BatchTrace, BatchTracer


def is_mapped_here(values: Sequence[Any]) -> bool:
    """Return whether ``jax.vmap`` is the innermost transformation, and maps one of ``values``."""
    trace = core.trace_ctx.trace
    if not isinstance(trace, BatchTrace):
        return False
    tracers = [value for value in values if isinstance(value, BatchTracer)]
    return any(tracer._trace.tag is trace.tag for tracer in tracers)


def is_tracing() -> bool:
    """Return whether JAX traces a function now, so that operations make no arrays."""
    return not core.trace_state_clean()


def runs_at_once() -> bool:
    """Return whether each operation runs now, on its own: nothing around it will be compiled."""
    trace = core.trace_ctx.trace
    # The traces of gradients and of jax.vmap pass operations on to the trace around them. Any
    # other, such as that of jax.jit or jax.shard_map, may be compiled.
    while isinstance(trace, (JVPTrace, LinearizeTrace, BatchTrace)):
        trace = trace.parent_trace
    return isinstance(trace, core.EvalTrace)


def takes_gradient() -> bool:
    """Return whether the innermost transformation, but for ``jax.vmap``, is a gradient's."""
    trace = core.trace_ctx.trace
    while isinstance(trace, BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, (JVPTrace, LinearizeTrace))


def is_differentiated(value: Any) -> bool:
    """Return whether a gradient is taken now of ``value``."""
    while isinstance(value, BatchTracer):
        value = value.val
    return isinstance(value, (JVPTracer, LinearizeTracer))


def is_pulled_back(values: Sequence[Any]) -> bool:
    """Return whether a gradient is taken now of one of ``values``, in reverse mode alone.

    ``jax.grad`` and ``jax.linearize`` have the same traces. The second, and ``jax.jvp``, may
    evaluate forward what is traced, which a custom VJP refuses: they are looked for on the stack.
    """
    if not any(map(is_differentiated, values)):
        return False
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        is_forward = frame.f_code.co_name in ("linearize", "_jvp")
        if is_forward and frame.f_globals.get("__name__") == "jax._src.api":
            return False
    return True


def scan_counts(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many inputs of a ``lax.scan`` are constants, and how many are carried.

    ``parameters`` are those of its equation.
    """
    if "num_consts" in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carried, _ = map(len, map(list, parameters["ft_in"].unpack()))  # from JAX 0.11
    return constants, carried


def maker(value: Any) -> Any:
    """Return the equation that made ``value`` in the jaxpr that is traced; None if none did."""
    while isinstance(value, (JVPTracer, LinearizeTracer, BatchTracer)):
        value = value.val if isinstance(value, BatchTracer) else value.primal
    return getattr(value, "parent", None)


def makers_before(equation: Any) -> list[Any]:
    """Return the equations that made what ``equation`` reads."""
    return list(filter(None, map(maker, equation.in_tracers)))


def varying_axes(value: Any) -> frozenset[str]:
    """Return the axes of ``jax.shard_map`` along which ``value`` varies, as its type says."""
    return frozenset(jax.typeof(value).manual_axis_type.varying)
