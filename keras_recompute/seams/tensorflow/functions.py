"""Functions that operations call: looked up by name, added to a graph, created, and inlined."""

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

# Under nested tapes TensorFlow wraps a loop or branch into a function of its own, whose derivative
# it cannot always differentiate (``control_flow_util.run_as_function_for_tape_gradients``). It does
# not in a graph with this in its name.
NOT_WRAPPED = "cflow_gradient_wrapper"


def find_function(graph: Any, name: str) -> Any:
    """Return the function that ``graph`` or an outer graph calls by ``name``, or None.

    It has a ``definition`` and ``children``.
    """
    return graph._get_function(name)


def add_function(graph: Any, function: Any) -> None:
    """Register ``function``, and the functions that it calls, with ``graph``."""
    graph._add_function_recursive(function)


@contextlib.contextmanager
def without_control_dependencies() -> Iterator[None]:
    """Return a context in which loops and branches get no automatic control dependencies.

    Their bodies must have no effects, whose order would be lost.
    """
    graph = tf.compat.v1.get_default_graph()
    adds = graph._add_control_dependencies
    graph._add_control_dependencies = False
    try:
        yield
    finally:
        graph._add_control_dependencies = adds


def register_by_name(graph: Any) -> None:
    """Make a function's graph keep callees by name, without copying them into every outer graph."""
    # At run time callees are found in the process. Copies are made when a GraphDef is asked for.
    if isinstance(graph, FuncGraph) and not isinstance(graph._add_function, functools.partial):
        here = weakref.ref(graph)
        waiting: list[AtomicFunction] = []
        graph._add_function = functools.partial(_add_by_name, here, waiting)
        graph._as_graph_def = functools.partial(_graph_def_with_copies, here, waiting)


def _add_by_name(here: Any, waiting: list[AtomicFunction], function: Any) -> None:
    if isinstance(function, AtomicFunction):
        here()._functions[tf.compat.as_str(function.name)] = function
        waiting.append(function)
    else:  # a function of TensorFlow 1, whose name is the type of the operations that call it
        FuncGraph._add_function(here(), function)


def _graph_def_with_copies(
    here: Any, waiting: list[AtomicFunction], *args: Any, **kwargs: Any
) -> Any:
    for function in waiting:
        FuncGraph._add_function(here(), function)
    waiting.clear()
    return FuncGraph._as_graph_def(here(), *args, **kwargs)


def registered_definition(name: str) -> Any:
    """Return the FunctionDef that TensorFlow's context knows by ``name``, or None."""
    known = context.context()
    return known.get_function_def(name) if known.has_function(name) else None


def make_function(definition: Any, children: Sequence[Any]) -> Any:
    """Create the function of a FunctionDef that calls ``children``.

    TensorFlow knows it for as long as the returned object is kept.
    """
    known, name = context.context(), definition.signature.name
    if not known.has_function(name.encode()):
        known.add_function_def(definition)
    inputs = _specs(definition.signature.input_arg)
    outputs = _specs(definition.signature.output_arg)
    signature = function_type.from_structured_signature((inputs, {}), outputs, {})
    return AtomicFunction(name, known, signature, list(children))


def _specs(arguments: Sequence[Any]) -> tuple[tf.TensorSpec, ...]:
    # Shapes are not part of a FunctionDef's signature.
    return tuple(tf.TensorSpec(None, tf.as_dtype(argument.type)) for argument in arguments)


_COMPILED = "_XlaMustCompile"
_plain_call = atomic_function.make_call_op_in_graph
# Takes a function's graph; returns, by operation name, what replaces a NodeDef by several, one of
# them of the same name. None: the function is called, not inlined.
Rewrite = Callable[[Any], Optional[Mapping[str, Callable[[Any], Sequence[Any]]]]]
_inlining: ContextVar[Rewrite | None] = ContextVar(
    "how compiled functions are written out", default=None
)


@contextlib.contextmanager
def inline_jit_calls(rewrite: Rewrite = lambda _: {}) -> Iterator[None]:
    """Inline calls of functions with ``jit_compile=True`` into graphs made in this thread.

    A function that assigns variables or has other state is called, not inlined. So is one for which
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
    has_state = any(
        type_is_stateful(node.op) and node.op != "ReadVariableOp" for node in definition.node_def
    )
    if has_state or any(t.dtype == tf.variant for t in inputs):
        return _plain_call(function, inputs, *others)
    replaced = rewrite(function.graph) if rewrite else None
    if replaced is None:
        return _plain_call(function, inputs, *others)
    graph = tf.compat.v1.get_default_graph()
    add_function(graph, function)  # registers its callees too, which the body calls
    body, names = function_def_to_graph_def(definition)
    arguments = {
        argument.name: graph.capture(value) for argument, value in zip(signature.input_arg, inputs)
    }
    # Placeholders stand for the arguments. They are removed, since one that remained in a branch
    # would become part of it.
    operations: list[Any] = []
    for node in body.node:
        if node.name in arguments:
            continue
        operations += replaced[node.name](node) if node.name in replaced else (node,)
    del body.node[:]
    body.node.extend(operations)
    read = _read_without_waits(body, arguments)
    given, found = {}, {}
    for name, value in arguments.items():
        found[f"{name}:0"] = value
        if name in read:
            given[f"{name}:0"] = value
    wanted = [names[definition.ret[result.name]] for result in signature.output_arg]
    computed = [name for name in wanted if name.partition(":")[0] not in arguments]
    # The name of a lambda has characters that a scope must not have.
    scope = re.sub(r"[^A-Za-z0-9_.-]+", "_", signature.name).strip("_.-")
    made = tf.graph_util.import_graph_def(body, given, computed, name=scope)
    found.update(zip(computed, made))
    return list(map(found.__getitem__, wanted))


def _read_without_waits(body: Any, arguments: Mapping[str, Any]) -> set[str]:
    """Make no node of ``body`` wait for ``arguments``, and return the names of what it reads."""
    waits = {f"^{name}" for name in arguments}
    read: set[str] = set()
    for node in body.node:
        kept = [name for name in node.input if name not in waits]
        del node.input[:]
        node.input.extend(kept)
        for name in kept:
            read.add(name.partition(":")[0])
    return read
