"""The analysis of a function: it goes through the engine to be looked at, and is not run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError
from ..calls.argument_checks import check_arguments, parameters_of
from ..calls.call_signature import flatten_call
from ..calls.closures import Callee
from ..frontend.checkpoint import Checkpointed, conversion
from ..graph.dataflow import tensor_specs
from ..partition.partition import Partition
from ..policies import save_everything
from .records import no_input_text, no_result_text


@dataclass(frozen=True, eq=False)
class Analysis:
    """A partitioned function, its name, and the names of the ports of its trace."""

    part: Partition
    name: str
    port_names: tuple[str, ...]

    @property
    def port_kinds(self) -> list[str]:
        """``argument``, ``variable`` or ``captured tensor``, one per port."""
        trace = self.part.joint.trace
        n_variables, n_captures = len(trace.variables), len(trace.captures)
        n_arguments = len(trace.ports) - n_variables - n_captures
        return (
            ["argument"] * n_arguments
            + ["variable"] * n_variables
            + ["captured tensor"] * n_captures
        )


def analyze(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Analysis:
    """Take ``fn`` through the engine for these arguments.

    A checkpointed function keeps its own policy; any other saves everything. Raises
    InvalidArgumentError if there is nothing to differentiate: no result or no input with a
    gradient.
    """
    fn = getattr(fn, "_keras_recompute_function", fn)  # of a checkpointed layer
    checkpointed = fn if isinstance(fn, Checkpointed) else Checkpointed(fn, save_everything)
    name = checkpointed.__name__
    callee = Callee.of(checkpointed.__wrapped__, args, kwargs)
    # What it captures is told by that name.
    callee = dataclasses.replace(callee, tensors=())
    parameters = parameters_of(callee.function)
    given = flatten_call(callee.args, callee.kwargs)
    tensors, treedef = given.tensors, given.treedef
    check_arguments(given, function=name, parameters=lambda: parameters)
    signature = tensor_specs(tensors)
    part = checkpointed.build(callee, conversion(), signature, given).part
    trace = part.joint.trace
    paths = treedef.paths(parameters)
    if not part.joint.incoming:
        raise InvalidArgumentError(no_result_text(name, [t.dtype.name for t in trace.outputs]))
    if not part.joint.produced:
        inputs = [(path, t.dtype.name) for path, t in zip(paths, tensors)]
        raise InvalidArgumentError(no_input_text(name, inputs, "tf.constant(3.0)"))
    names = (*paths, *(getattr(v, "path", None) or v.name.split(":")[0] for v in trace.variables))
    return Analysis(
        part, name, (*names, *(t.name if hasattr(t, "graph") else "" for t in trace.captures))
    )
