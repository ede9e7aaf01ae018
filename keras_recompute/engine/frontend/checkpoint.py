"""``checkpoint``: a function whose backward pass recomputes what a policy does not save.

The function is traced once per signature and goes through the engine: trace, join, partition,
check, lower. What it computes stays the same, and so do all gradients, of any order and under any
kind of reverse-mode differentiation.

Source: ``jax.checkpoint``; Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import InvalidArgumentError
from ...keras_backend.wrapped_function import WrappedFunction
from ...op_names import section_name
from ...seams.keras.call_context import is_symbolic
from ...seams.tensorflow import autograph
from ...seams.tensorflow.function_bodies import trace_bodies_within
from ...seams.tensorflow.tensors import is_eager
from ..calls.argument_checks import check_arguments, parameters_of
from ..calls.arguments import Arguments, Results
from ..calls.call_signature import FlatCall, IdentityKey, flatten_call, is_known_here
from ..calls.closures import Callee
from ..calls.losses import Losses
from ..calls.object_state import dependencies_of, stateful_objects
from ..calls.side_effects import ClosureSnapshot
from ..calls.stateless_updates import StatelessUpdates
from ..capture.custom_vjp import ForwardModeError, in_vectorized_map
from ..capture.trace import trace
from ..emit.lowering import lower
from ..graph.dataflow import tensor_specs
from ..partition.partition import Partition
from ..passes import target_now
from ..policies import Policy, save_nothing
from .build import build
from .diagnostics import advise, check_names, warn_vectorized
from .trace_context import trace_context


def checkpoint(fn: Callable[..., Any] | None = None, *, policy: Policy | None = None) -> Any:
    """Return ``fn`` as a ``Checkpointed`` function; without ``fn`` a decorator."""
    if fn is None:
        return functools.partial(checkpoint, policy=policy)
    return Checkpointed(fn, policy)


@dataclass(frozen=True, eq=False)
class Built:
    """The programs of a function for one signature, and how its results are built of theirs."""

    part: Partition
    results: Results
    losses: Losses
    updates: StatelessUpdates

    @property
    def is_portable(self) -> bool:
        """Whether it holds no object of its function, so that it may stand for equal ones."""
        if self.losses.count or self.updates.count:
            return False
        return not any(isinstance(key, IdentityKey) for key in self.results.static_keys)

    def unflatten(self, outputs: Sequence[tf.Tensor], given: FlatCall) -> Any:
        """Return what the function returned.

        Losses are added to its layers again, and what was ``given`` is changed as the function did.
        """
        return self.results.unflatten(self.losses.reattach(self.updates.reattach(outputs)), given)


class Checkpointed(WrappedFunction):
    """A function that is recomputed in its backward pass; ``checkpoint`` returns it."""

    # A caller that checkpoints several functions together replaces it, to advise once for all.
    advise = staticmethod(advise)
    # AutoGraph leaves this object alone; ``converted`` converts the function inside.
    autograph_info__ = True

    def __init__(self, fn: Callable[..., Any], policy: Policy | None = None) -> None:
        super().__init__(fn, save_nothing if policy is None else policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        callee = _with_plain_training(Callee.of(self.__wrapped__, args, kwargs))
        given = flatten_call(callee.args, callee.kwargs)
        check_arguments(
            given, function=self.__name__, parameters=lambda: parameters_of(callee.function)
        )
        # Keras asks for shapes: there are no values and no gradients, and layers make weights.
        if is_symbolic():
            return converted(self.__wrapped__)(*args, **kwargs)
        if in_vectorized_map():
            warn_vectorized(f"the checkpoint of {self.__name__!r}")
            return converted(self.__wrapped__)(*args, **kwargs)
        tensors = [*given.tensors, *callee.tensors]
        signature = tensor_specs(tensors)
        kind = (_key(self.policy), given.treedef, tuple(signature), trace_context())
        cache = callee.cache(self)
        before: dict[str, Any] = {}

        def key() -> Any:
            parts = callee.parts(cache.changed)
            changed = {name for name in before if parts.get(name) != before[name]}
            # Tracing changed what the function captures, which would be traced again at each call.
            if changed:
                cache.changed |= changed
                parts = callee.parts(cache.changed)
            before.update(parts)
            return tuple(parts.items()), kind

        def make() -> Callable[..., Any]:
            callee.note_trace(kind, before, self.__name__)
            built = self.share(kind, lambda: self.build(callee, conversion(), signature, given))
            return _program(built, section_name(self.__name__))

        uses = callee_uses(callee, given)
        try:
            return cache.get(key, make, uses=uses, name=self.__name__)(tensors, given)
        except ForwardModeError:
            # It has no backward pass for which anything could be kept, and follows TensorFlow's own
            # operations.
            return converted(self.__wrapped__)(*args, **kwargs)

    @staticmethod
    def share(_kind: Any, build: Callable[[], Built]) -> Built:
        """Return ``build()``. A caller may replace it by what was built for an equal function.

        Calls of one kind have the same signature, structure of arguments, policy and context.
        """
        return build()

    def build(
        self,
        callee: Callee,
        convert: Callable[[Any], Any],
        signature: Sequence[tf.TensorSpec],
        given: FlatCall,
    ) -> Built:
        """Take the function of ``callee`` through the engine, for arguments like ``given``.

        ``convert`` is what AutoGraph makes of a function.
        """
        name = self.__name__
        results: list[Results] = []
        losses, updates = Losses(), StatelessUpdates()
        surroundings: list[ClosureSnapshot] = []

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            count = len(given.tensors)
            bound = callee.bind(tensors[count:])
            surroundings[:] = [ClosureSnapshot(bound)]
            function = convert(bound)
            arguments = Arguments(
                given, tensors[:count], function=name, parameters=parameters_of(callee.function)
            )
            arguments.refuse_augmented(callee.function)
            args, kwargs = arguments.value
            try:
                with trace_bodies_within(arguments.body):
                    found = function(*args, **kwargs)
            except (TypeError, ValueError) as error:
                raise arguments.explained(error) from None
            returned, layout = arguments.results(found)
            results[:] = [layout]
            # Weights, and layers, may have been made by the call.
            return updates.collect(
                losses.collect(returned, stateful_objects(callee_uses(callee, given)))
            )

        try:
            traced = trace(flat, signature, target_now())
        except ValueError as error:
            if "singleton tf.Variable" not in str(error):
                raise
            raise InvalidArgumentError(
                f"{name!r} creates a variable, or a layer that has some, each time it runs, so "
                "they would not be trained. Create it once, outside of the function."
            ) from error
        surroundings[0].check(traced.graph, name=name)
        strangers = [t.name for t in traced.captures if not is_known_here(t)]
        if strangers:
            raise InvalidArgumentError(
                f"{name!r} uses {strangers[0]!r}, a tensor of another graph that is not an "
                "argument. Pass it as an argument, and keep no tensors from one tf.function to "
                "the next"
            )
        if len(traced.outputs) == losses.count + updates.count:
            raise InvalidArgumentError(
                f"{name!r} returned {results[0].unflatten([], given)!r}, which has no tensor: "
                "return at least one"
            )
        check_names(self.policy, traced, name)
        part = build(traced, self.policy, name=name, owners=callee_uses(callee, given))
        self.advise(part, self.policy, name)
        return Built(part, results[0], losses, updates)


def _program(built: Built, name: str) -> Callable[[Sequence[tf.Tensor], FlatCall], Any]:
    """Return the function that runs ``built``, which keeps no arguments and no function alive."""

    def run(tensors: Sequence[tf.Tensor], given: FlatCall) -> Any:
        return built.unflatten(lower(built.part, tensors, name=name), given)

    return run


def _with_plain_training(callee: Callee) -> Callee:
    """Return ``callee`` with its ``training`` argument as a Python bool.

    It may be NumPy's or an eager tensor. Layers ask for its truth, which a traced tensor does not
    have.
    """
    kwargs, args = dict(callee.kwargs), list(callee.args)
    if _is_truth(kwargs.get("training")):
        kwargs["training"] = bool(kwargs["training"])
    numbers = [number for number, value in enumerate(args) if _is_truth(value)]
    names = parameters_of(callee.function) if numbers else ()
    for number in numbers:
        if number < len(names) and names[number] == "training":
            args[number] = bool(args[number])
    return dataclasses.replace(callee, args=tuple(args), kwargs=kwargs)


def _is_truth(value: Any) -> bool:
    if isinstance(value, tf.Tensor):
        return is_eager(value) and value.dtype == tf.bool and value.shape.rank == 0
    return isinstance(value, (np.bool_, np.ndarray)) and value.dtype == bool and value.ndim == 0


def callee_uses(callee: Callee, given: FlatCall) -> tuple[Any, ...]:
    """Return the objects whose attributes a call uses (see ``object_state``).

    Tensors that the program is fed are not among them.
    """
    fed = set(map(id, callee.tensors))
    used = dependencies_of(callee.function, given.treedef.static_leaves)
    return tuple(each for each in used if id(each) not in fed)


def _key(policy: Policy) -> Any:
    try:
        hash(policy)
    except TypeError:
        return IdentityKey(policy)
    return policy


def conversion() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return AutoGraph's conversion of functions; the identity where a caller turned it off.

    It converts the ``if`` and ``while`` on tensors.
    """
    return (lambda function: function) if autograph.is_disabled() else _convert


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` as ``conversion()`` converts it."""
    return conversion()(function)


def _convert(function: Callable[..., Any]) -> Callable[..., Any]:
    convert = autograph.with_autograph(
        function
    )  # the engine traces with AutoGraph turned off, for its own functions

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return convert(*args, **kwargs)
        except Exception as error:
            # AutoGraph has an error of its own in place of a class that it cannot make by one
            # message.
            original = error.__context__
            if (
                hasattr(error, "ag_error_metadata")
                and original is not None
                and not isinstance(error, type(original))
            ):
                raise original from None
            raise

    return call
