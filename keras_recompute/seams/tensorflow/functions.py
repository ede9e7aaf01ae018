"""The functions that operations call: found by name, given to a graph, and made known to TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Optional

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from .operations import type_is_stateful

# Under nested tapes TensorFlow writes a loop or a branch into a function of its own, which it can differentiate, but not always
# the derivative (``control_flow_util.run_as_function_for_tape_gradients``); not in a graph that has this in its name.
NOT_WRAPPED = "cflow_gradient_wrapper"


def find_function(graph: Any, name: str) -> Any:
    """Return the function that ``graph`` or one around it calls by ``name``, with ``definition`` and ``children``, or None."""
    return graph._get_function(name)


def add_function(graph: Any, function: Any) -> None:
    """Let operations of ``graph`` call ``function``, and the functions that it calls."""
    graph._add_function_recursive(function)


def register_by_name(graph: Any) -> None:
    """Have the graph of a function know functions by name from now on, where TensorFlow copies each into every graph around it.

    What runs a function finds those that it calls in the process. Copies are made once somebody asks for the GraphDef.
    """
    if isinstance(graph, FuncGraph) and not isinstance(graph._add_function, functools.partial):
        here = weakref.ref(graph)
        waiting: list[AtomicFunction] = []
        graph._add_function = functools.partial(_add_by_name, here, waiting)
        graph._as_graph_def = functools.partial(_graph_def_with_copies, here, waiting)


def _add_by_name(here: Any, waiting: list[AtomicFunction], function: Any) -> None:
    if isinstance(function, AtomicFunction):
        here()._functions[tf.compat.as_str(function.name)] = function
        waiting.append(function)
    else:  # of TensorFlow 1, where a function's name is the type of operations
        FuncGraph._add_function(here(), function)


def _graph_def_with_copies(here: Any, waiting: list[AtomicFunction], *args: Any, **kwargs: Any) -> Any:
    for function in waiting:
        FuncGraph._add_function(here(), function)
    waiting.clear()
    return FuncGraph._as_graph_def(here(), *args, **kwargs)


def registered_definition(name: str) -> Any:
    """Return the FunctionDef that TensorFlow knows by ``name``, whichever graph calls it; None where it knows none."""
    known = context.context()
    return known.get_function_def(name) if known.has_function(name) else None


def make_function(definition: Any, children: Sequence[Any]) -> Any:
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


_COMPILED = "_XlaMustCompile"
_plain_call = atomic_function.make_call_op_in_graph
# From the graph of a function to what makes, of a node, those in its place, by the names of operations; None if the function is
# to be called. One of the nodes bears the name of the operation.
Rewrite = Callable[[Any], Optional[Mapping[str, Callable[[Any], Sequence[Any]]]]]
_inlining: ContextVar[Rewrite | None] = ContextVar("how compiled functions are written out", default=None)


@contextlib.contextmanager
def inline_jit_calls(rewrite: Rewrite = lambda _: {}) -> Iterator[None]:
    """Have this thread write into graphs what a ``tf.function`` with ``jit_compile=True`` computes, instead of a call of it.

    A function that does more to variables than to read them, or has other state, is called as ever, and so is one for which
    ``rewrite`` returns None.
    """
    atomic_function.make_call_op_in_graph = _call_or_body
    token = _inlining.set(rewrite)
    try:
        yield
    finally:
        _inlining.reset(token)


def _call_or_body(function: Any, inputs: Sequence[tf.Tensor], *others: Any) -> Any:
    rewrite = _inlining.get()
    definition = function.cached_definition if rewrite else None
    if definition is None or not (_COMPILED in definition.attr and definition.attr[_COMPILED].b):
        return _plain_call(function, inputs, *others)
    signature = definition.signature
    has_state = any(type_is_stateful(node.op) and node.op != "ReadVariableOp" for node in definition.node_def)
    if has_state or any(t.dtype == tf.variant for t in inputs):
        return _plain_call(function, inputs, *others)
    replaced = rewrite(function.graph) if rewrite else None
    if replaced is None:
        return _plain_call(function, inputs, *others)
    graph = tf.compat.v1.get_default_graph()
    add_function(graph, function)  # with those that it calls
    body, names = function_def_to_graph_def(definition)
    arguments = {argument.name: graph.capture(value) for argument, value in zip(signature.input_arg, inputs)}
    # Placeholders stand for the arguments. One that is left in a branch is part of it, whether it is read or not.
    operations = [
        new
        for node in body.node
        if node.name not in arguments
        for new in (replaced[node.name](node) if node.name in replaced else (node,))
    ]
    del body.node[:]
    body.node.extend(operations)
    waits_for_arguments = {f"^{name}" for name in arguments}
    for node in body.node:
        kept = [name for name in node.input if name not in waits_for_arguments]
        del node.input[:]
        node.input.extend(kept)
    read = {name.partition(":")[0] for node in body.node for name in node.input}
    given = {f"{name}:0": value for name, value in arguments.items() if name in read}
    wanted = [names[definition.ret[result.name]] for result in signature.output_arg]
    computed = [name for name in wanted if name.partition(":")[0] not in arguments]
    scope = re.sub(r"[^A-Za-z0-9_.-]+", "_", signature.name).strip("_.-")  # of a lambda it has other signs too
    made = tf.graph_util.import_graph_def(body, given, computed, name=scope)
    found = {**{f"{name}:0": value for name, value in arguments.items()}, **dict(zip(computed, made))}
    return [found[name] for name in wanted]
