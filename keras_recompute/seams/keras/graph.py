"""The graph of a functional model: its nodes, which are calls of operations, and the way that a model is run along it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
from keras.src.models.functional import Functional, functional_like_constructor  # what keras.Model(inputs, outputs) makes

__all__ = ["Functional", "functional_like_constructor"]

# The attributes in which a functional model keeps its graph, with the names of its ends.
GRAPH_OF_MODEL = frozenset(
    {
        "_inputs", "_inputs_struct", "_layers", "_nodes", "_nodes_by_depth", "_operations",
        "_operations_by_depth", "_outputs", "_outputs_struct", "output_names",
    }
)  # fmt: skip


def nodes_of(model: keras.Model) -> list[Any]:
    """Return the nodes of a functional ``model``, those of its inputs included, in running order."""
    return [node for depth in sorted(model._nodes_by_depth, reverse=True) for node in model._nodes_by_depth[depth]]


def call_nodes(model: keras.Model) -> list[Any]:
    """Return the nodes of a functional ``model`` that are calls of operations, in running order."""
    return [node for node in nodes_of(model) if node.operation and not node.is_input]


def nodes_of_operation(operation: Any) -> list[Any]:
    """Return the nodes of all calls of ``operation``, in whichever model."""
    nodes: list[Any] = operation._inbound_nodes
    return nodes


def producing_node(tensor: keras.KerasTensor) -> Any:
    """Return the node that made ``tensor``."""
    operation, node_index, _ = tensor._keras_history
    return nodes_of_operation(operation)[node_index]


def functional_of_sequential(model: keras.Sequential) -> Any:
    """Return the functional model that a sequential one runs; None before it is built."""
    return model._functional


def flat_inputs(model: keras.Model, inputs: Any) -> list[Any]:
    """Return ``inputs`` as a functional ``model`` hands them to its layers: a list in its order, of its types and ranks."""
    return list(model._standardize_inputs(inputs))


def run_graph(model: keras.Model, inputs: Any, call: Callable[..., Any]) -> Any:
    """Run the graph of a functional ``model`` with ``call(operation, *args, **kwargs)`` for each call of an operation."""
    return model._run_through_graph(inputs, operation_fn=lambda operation: operation, call_fn=call)


def set_operation_order(model: keras.Model, operations: Sequence[Any]) -> None:
    """Let a functional ``model`` list its operations, layers and weights in the order of ``operations``."""
    model._operations = list(operations)
    model._layers = model.layers


def tracked_layers(model: keras.Model) -> list[Any]:
    """Return the layers that ``model`` tracks: those of its graph, and since Keras 3.15 those in its attributes too."""
    return list(model._layers)


def observe_new_models(note: Callable[[Any], None]) -> None:
    """Have ``note`` called with each functional model that is made from now on."""
    plain = Functional.__init__

    @functools.wraps(plain)
    def init(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        note(args[0])

    # Keras compares the parameters of constructors with these (see ``functional_like_constructor``).
    # Up to Keras 3.12 they are those of a decorator, as are those of ``init``.
    if not hasattr(plain, "__wrapped__"):
        init.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    Functional.__init__ = init


def observe_runs(model: Any, note: Callable[[], None]) -> None:
    """Have ``note`` called whenever the functional ``model`` runs its graph, also inside of another model."""
    plain = model._standardize_inputs

    def standardize_inputs(inputs: Any) -> Any:
        note()
        return plain(inputs)

    model._standardize_inputs = standardize_inputs


class GraphRunner:
    """Goes in front of a functional model's class: its ``run_by_graph`` is called where Keras would run the graph."""

    def run_by_graph(self, inputs: Any, plain: Callable[[], Any]) -> Any:
        """Return the outputs for ``inputs``, as ``plain()`` does."""
        raise NotImplementedError

    def _run_through_graph(self, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None) -> Any:
        def plain() -> Any:
            return super(GraphRunner, self)._run_through_graph(inputs, operation_fn=operation_fn, call_fn=call_fn)  # type: ignore

        return self.run_by_graph(inputs, plain)


class CloneObserver:
    """Goes in front of a model's class: ``note_clones`` is told when ``clone_model`` has run its graph."""

    def note_clones(self, taken: dict[Any, Any], outputs: Any) -> None:
        """Note what was ``taken`` for each operation of the graph, and the outputs of the run."""
        raise NotImplementedError

    def _run_through_graph(self, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None) -> Any:
        taken: dict[Any, Any] = {}

        def operation_for(operation: Any) -> Any:
            taken[operation] = operation_fn(operation)
            return taken[operation]

        outputs = super()._run_through_graph(inputs, operation_fn=operation_for, call_fn=call_fn)  # type: ignore[misc]
        self.note_clones(taken, outputs)
        return outputs


def runs_plain_graph(model: Any, *, ours: Collection[str]) -> bool:
    """Whether ``model`` is functional and does what Keras does with its graph, classes in the modules ``ours`` aside."""
    names = ("call", "_run_through_graph")
    return isinstance(model, Functional) and all(_does_as(Functional, model, name, (*ours, __name__)) for name in names)


def has_call_of(cls: type, model: Any) -> bool:
    """Whether calling ``model`` is what Keras's ``cls`` does, no other ``call`` of its own class."""
    return _does_as(cls, model, "call", ())


def _does_as(cls: type, model: Any, name: str, skipped: Collection[str]) -> bool:
    return _first(type(model).__mro__, name, skipped) is _first(cls.__mro__, name, ())


def _first(classes: Sequence[type], name: str, skipped: Collection[str]) -> Any:
    return next(vars(each)[name] for each in classes if name in vars(each) and each.__module__ not in skipped)
