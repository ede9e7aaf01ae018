"""Step 1 of the engine: run a Python function once, on placeholders, and keep its graph.

A traced function has three kinds of input, which the later steps treat differently:

* *arguments*: the tensors that it was called with;
* *variables*: the value of a variable that is only read becomes an input like any other. It is read
  once before the call, wherever the reads are (see ``variables_by_value``). So the backward pass
  sees the value that the forward pass saw, whatever was assigned in between. A variable that the
  function assigns is an input without a tensor, through which its gradient leaves;
* *handles*: variables that the function assigns, tables, generators. They keep their identity and
  their order.

Tensors of an outer graph that the function closed over (*captures*) are inputs too.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.functions import NOT_WRAPPED, register_by_name
from ..graph.annotations import traced
from ..graph.target import Target
from .purity import Purity

# One input of a program: the tensors of the traced graph that one value from outside stands for. A
# variable that is read three times is three tensors, its handle, and one value; one that is
# assigned is one value, and read where it always was.
Port = tuple[tf.Tensor, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """A function as a graph.

    ``ports`` are its explicit inputs in the order arguments, variables, captures.
    ``differentiable`` has, for each port, the tensor whose gradient is the port's gradient: for a
    variable its handle, which also collects what is read inside loops and branches. If it is
    shorter, the last ports have no gradient. ``value_specs`` has the type and shape of the value
    for each handle in a port, by the handle's reference.
    """

    graph: Any
    ports: tuple[Port, ...]
    differentiable: tuple[tf.Tensor, ...]
    variables: tuple[tf.Variable, ...]
    captures: tuple[tf.Tensor, ...]
    handles: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    outputs: tuple[tf.Tensor, ...]
    structure: Any
    purity: Purity
    value_specs: Mapping[Any, tf.TensorSpec]
    target: Target

    @property
    def arguments(self) -> tuple[tf.Tensor, ...]:
        """The placeholders of the arguments."""
        return self.differentiable[: len(self.ports) - len(self.variables) - len(self.captures)]

    def values(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return one value per port: the given arguments, the variables read now, the captures."""
        return [*arguments, *(variable.value() for variable in self.variables), *self.captures]


def trace(
    function: Callable[..., Any], signature: Sequence[tf.TensorSpec], target: Target
) -> Trace:
    """Trace ``function`` into a graph of its own, for ``target``.

    It takes one tensor per entry of ``signature``.
    """

    @functools.wraps(function)  # so that placeholders bear the names of its parameters
    def marked(*tensors: tf.Tensor) -> Any:
        register_by_name(tf.compat.v1.get_default_graph())
        with traced(), contextlib.ExitStack() as otherwise:
            for written_otherwise in target.at("traced"):
                otherwise.enter_context(written_otherwise())
            return function(*tensors)

    # Our derivatives do not need the functions that TensorFlow writes loops and branches into, and
    # cannot always derive twice.
    marked.__name__ += f"_{NOT_WRAPPED}"
    concrete = tf.function(marked, autograph=False).get_concrete_function(*signature)
    graph = concrete.graph
    arguments = tuple(graph.inputs[: len(signature)])
    purity = Purity(graph)
    variable_of = {id(variable.handle): variable for variable in graph.variables}

    variables, variable_ports, variable_handles, captures, handles = [], [], [], [], []
    value_specs: dict[Any, tf.TensorSpec] = {}
    for external, internal in graph.captures:
        # Resources and lists of tensors keep their identity: they are handles.
        if external.dtype not in (tf.resource, tf.variant):
            captures.append((external, internal))
            continue
        variable = variable_of.get(id(external))
        is_only_read = variable is not None and not purity.is_assigned(internal)
        if not is_only_read:
            handles.append((internal, external))
        if variable is not None:
            reads = [op.outputs[0] for op in internal.consumers() if op.type == "ReadVariableOp"]
            variables.append(variable)
            variable_handles.append(internal)
            variable_ports.append((*reads, internal) if is_only_read else ())
            if is_only_read:
                value_specs[internal.ref()] = tf.TensorSpec(variable.shape, variable.dtype)

    captured = list(map(operator.itemgetter(1), captures))
    return Trace(
        graph=graph,
        ports=(*zip(arguments), *variable_ports, *zip(captured)),
        differentiable=(*arguments, *variable_handles, *captured),
        variables=tuple(variables),
        captures=tuple(map(operator.itemgetter(0), captures)),
        handles=tuple(handles),
        outputs=tuple(graph.outputs),
        structure=concrete.structured_outputs,
        purity=purity,
        value_specs=value_specs,
        target=target,
    )
