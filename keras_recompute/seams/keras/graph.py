"""The graph of a functional model: its nodes, and how Keras runs a model along it.

A node is one call of an operation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras

# The class that keras.Model(inputs, outputs) constructs.
from keras.src.models.functional import Functional, functional_like_constructor

__all__ = ["Functional", "functional_like_constructor"]

# The attributes in which a functional model keeps its graph, with the names of its ends.
GRAPH_OF_MODEL = frozenset(
    {
        "_inputs", "_inputs_struct", "_layers", "_nodes", "_nodes_by_depth", "_operations",
        "_operations_by_depth", "_outputs", "_outputs_struct", "output_names",
    }
)  # fmt: skip


# The method that ``observe_runs`` replaces in an object.
OBSERVED_METHOD = "_standardize_inputs"


def nodes_of(model: keras.Model) -> list[Any]:
    """Return the nodes of a functional ``model`` in running order, its inputs included."""
    return [
        node
        for depth in sorted(model._nodes_by_depth, reverse=True)
        for node in model._nodes_by_depth[depth]
    ]


def call_nodes(model: keras.Model) -> list[Any]:
    """Return the nodes of a functional ``model`` that are calls, in running order."""
    return [node for node in nodes_of(model) if node.operation and not node.is_input]


def nodes_of_operation(operation: Any) -> list[Any]:
    """Return the nodes of all calls of ``operation``, in any model."""
    nodes: list[Any] = operation._inbound_nodes
    return nodes


def producing_node(tensor: keras.KerasTensor) -> Any:
    """Return the node that made ``tensor``."""
    operation, node_index, _ = tensor._keras_history
    return nodes_of_operation(operation)[node_index]


def functional_of_sequential(model: keras.Sequential) -> Any:
    """Return the functional model inside a sequential one; None before it is built."""
    return model._functional


def flat_inputs(model: keras.Model, inputs: Any) -> list[Any]:
    """Return ``inputs`` as a functional ``model`` passes them to its layers.

    That is a list in the model's order, with its types and ranks.
    """
    return list(model._standardize_inputs(inputs))


def run_graph(model: keras.Model, inputs: Any, call: Callable[..., Any] | None = None) -> Any:
    """Run a functional ``model``: ``call(operation, *args, **kwargs)`` for each of its nodes.

    Without ``call`` the operations are called as they are.
    """
    return model._run_through_graph(inputs, operation_fn=lambda operation: operation, call_fn=call)


def tracked_layers(model: keras.Model) -> list[Any]:
    """Return the layers that ``model`` tracks: in its graph, and since Keras 3.15 in attributes."""
    return list(model._layers)


def observe_new_models(note: Callable[[Any], None]) -> None:
    """Call ``note`` with each functional model that is constructed from now on."""
    plain = Functional.__init__

    @functools.wraps(plain)
    def init(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        note(args[0])

    # Keras compares constructors' signatures with this one (``functional_like_constructor``). Up to
    # Keras 3.12 the signature is that of a decorator, and ``init`` has the same.
    if not hasattr(plain, "__wrapped__"):
        init.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    Functional.__init__ = init


def observe_runs(model: Any, note: Callable[[], None]) -> None:
    """Call ``note`` whenever the functional ``model`` runs its graph, also inside another model."""
    plain = getattr(model, OBSERVED_METHOD)

    def standardize_inputs(inputs: Any) -> Any:
        note()
        return plain(inputs)

    setattr(model, OBSERVED_METHOD, standardize_inputs)


class GraphRunner:
    """Mixin before a functional class: Keras calls ``run_by_graph`` to run the model's graph."""

    def run_by_graph(self, inputs: Any, plain: Callable[[], Any]) -> Any:
        """Return the outputs for ``inputs``; ``plain()`` computes them as Keras does."""
        raise NotImplementedError

    def _run_through_graph(
        self, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None
    ) -> Any:
        keras_run = super()._run_through_graph  # type: ignore[misc]

        def plain() -> Any:
            return keras_run(inputs, operation_fn=operation_fn, call_fn=call_fn)

        return self.run_by_graph(inputs, plain)


class CloneObserver:
    """Mixin before a model's class: ``clone_model`` reports its clones to ``note_clones``."""

    def note_clones(self, replacements: dict[Any, Any], outputs: Any) -> None:
        """Record the clone of each operation, by ``replacements``, and the clone's outputs."""

    def _run_through_graph(
        self, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None
    ) -> Any:
        replacements: dict[Any, Any] = {}

        def operation_for(operation: Any) -> Any:
            replacements[operation] = operation_fn(operation)
            return replacements[operation]

        outputs = super()._run_through_graph(inputs, operation_fn=operation_for, call_fn=call_fn)  # type: ignore[misc]
        self.note_clones(replacements, outputs)
        return outputs


def runs_plain_graph(model: Any, *, ours: Collection[str]) -> bool:
    """Whether ``model`` is functional and runs its graph as Keras does.

    Methods of classes defined in the modules ``ours`` are not counted as a difference.
    """
    # A class that overrides either method computes something else than its graph says.
    names = ("call", "_run_through_graph")
    return isinstance(model, Functional) and all(
        _does_as(Functional, model, name, (*ours, __name__)) for name in names
    )


def has_call_of(cls: type, model: Any) -> bool:
    """Whether ``model`` uses the ``call`` of Keras's ``cls``, and not one of its own class."""
    return _does_as(cls, model, "call", ())


def _does_as(cls: type, model: Any, name: str, skipped: Collection[str]) -> bool:
    return _first(type(model).__mro__, name, skipped) is _first(cls.__mro__, name, ())


def _first(classes: Sequence[type], name: str, skipped: Collection[str]) -> Any:
    return next(
        vars(each)[name]
        for each in classes
        if name in vars(each) and each.__module__ not in skipped
    )
