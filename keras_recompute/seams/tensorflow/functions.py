"""The functions that operations call: found by name, given to a graph, and made known to TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

# Under nested tapes TensorFlow writes a loop or a branch into a function of its own, which it can differentiate, but not always
# the derivative (``control_flow_util.run_as_function_for_tape_gradients``); not in a graph that has this in its name.
NOT_WRAPPED = "cflow_gradient_wrapper"


def function_in(graph: Any, name: str) -> Any:
    """Return the function that ``graph`` or one around it calls by ``name``, with ``definition`` and ``children``, or None."""
    return graph._get_function(name)


def add_function(graph: Any, function: Any) -> None:
    """Let operations of ``graph`` call ``function``, and the functions that it calls."""
    graph._add_function_recursive(function)


def definition_in_process(name: str) -> Any:
    """Return the FunctionDef that TensorFlow knows by ``name``, whichever graph calls it; None where it knows none."""
    known = context.context()
    return known.get_function_def(name) if known.has_function(name) else None


def function_of(definition: Any, children: Sequence[Any]) -> Any:
    """Return the function of a FunctionDef, which calls ``children``; TensorFlow knows it for as long as that is kept."""
    known, name = context.context(), definition.signature.name
    if not known.has_function(name.encode()):
        known.add_function_def(definition)
    inputs, outputs = (
        tuple(tf.TensorSpec(None, tf.as_dtype(argument.type)) for argument in arguments)
        for arguments in (definition.signature.input_arg, definition.signature.output_arg)
    )
    signature = function_type.from_structured_signature((inputs, {}), outputs, {})
    return AtomicFunction(name, known, signature, list(children))
