"""``checkpoint`` on JAX and PyTorch: a function that runs as a pure function of what it reads.

Keras's layers keep weights, statistics and the state of random generators in variables. A function
that runs twice must find the same values both times, and change them once. So it runs in a
``keras.StatelessScope`` of its own. A replay finds the values that the first run found, and draws
the dropout masks of the forward pass, where ``keras.remat`` draws others. New values and losses are
among the results, and are written once, outside.

How a pure function is recomputed is the backend's: ``keras_backend.jax_remat`` or ``torch_remat``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from ..engine.policies import Policy, SaveEverything, names_in, save_nothing
from ..errors import InvalidArgumentError, UnsupportedError
from ..keras_backend import JAX, current_backend
from ..keras_backend.gradient_demand import gradient_may_be_asked
from ..keras_backend.policy_checks import warn_of_unknown_names
from ..keras_backend.wrapped_function import WrappedFunction
from ..op_names import backward_scope, forward_scope, section_name
from ..seams.keras.call_context import (
    autocast_dtype,
    autocast_to,
    current_training,
    entry_layer,
    pass_training,
    stateless_scope,
)
from ..seams.keras.layers import add_losses, backend_variable, layers_in
from ..seams.keras.time_loops import time_loops_now
from .active_groups import groups_now
from .masks_and_losses import append_masks, attach_masks, detach_losses

if TYPE_CHECKING or current_backend() == JAX:
    from ..keras_backend import jax_remat as remat
    from .jax_policies import backend_policy, mark
else:
    from ..keras_backend import torch_remat as remat
    from .torch_policies import backend_policy, mark

__all__ = ["Checkpointed", "checkpoint_name"]

_TENSOR = object()  # stands where a function returned a tensor


class Checkpointed(WrappedFunction):
    """A function that is recomputed in its backward pass; ``checkpoint`` returns it."""

    def __init__(self, fn: Callable[..., Any], policy: Policy | None = None) -> None:
        super().__init__(fn, save_nothing if policy is None else policy)
        self._backend_policy = backend_policy(self.policy)
        self._check_marks = None
        if names := names_in(self.policy):
            self._check_marks = functools.partial(
                warn_of_unknown_names, self.policy, names, function=self.__name__
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__wrapped__
        if isinstance(self.policy, SaveEverything) or not gradient_may_be_asked():
            return function(*args, **kwargs)
        used = [*_values_used_by(function), *keras.tree.flatten((args, kwargs))]
        layers = _layers_among(used)
        modules = list(filter(remat.is_plain_module, keras.tree.flatten(used)))
        return call_recomputed(
            function,
            args,
            kwargs,
            layers,
            modules=modules,
            used=[function, *itertools.filterfalse(keras.ops.is_tensor, used)],
            name=self.__name__,
            policy=self._backend_policy,
            check_marks=self._check_marks,
        )


def call_recomputed(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    layers: Sequence[keras.layers.Layer],
    *,
    modules: Sequence[Any] = (),
    used: Sequence[Any] = (),
    name: str,
    policy: Any = None,
    check_marks: Callable[[Iterable[str]], None] | None = None,
) -> Any:
    """Return ``function(*args, **kwargs)``, which is run again in the backward pass.

    It calls ``layers``, with all nested ones among them, and ``modules`` of PyTorch. A replay finds
    what is ``used`` as it was. ``policy`` is one of the backend's. ``check_marks`` is called with
    the names that the function marks values with.
    """
    leaves, unflatten = remat.flatten((args, kwargs))
    numbers = [number for number, leaf in enumerate(leaves) if keras.ops.is_tensor(leaf)]
    given = [leaves[number] for number in numbers]
    # A tensor that the replay kept would stay in memory beside what the policy saves.
    for number in numbers:
        leaves[number] = None
    # The leaves of what it returned, without tensors, and the function that puts them together.
    returned: list[Any] = []

    def flat(*tensors: Any) -> list[Any]:
        values = list(leaves)
        for number, tensor in zip(numbers, tensors):
            values[number] = tensor
        new_args, new_kwargs = unflatten(values)
        result = function(*new_args, **new_kwargs)
        _require_unchanged(values, (new_args, new_kwargs), name)
        found, pack = remat.flatten(result)
        returned[:] = [list(map(_without_tensor, found)), pack]
        return list(filter(keras.ops.is_tensor, found))

    outputs = PureCall(flat, layers, name, policy, modules, used, check_marks)(given)
    if outputs is None:
        # It made variables, such as those of a layer that is called for the first time. Behind a
        # scope Keras gives them their values.
        with keras.StatelessScope():
            pass
        return function(*args, **kwargs)
    made = iter(outputs)
    kept, pack = returned
    return pack([next(made) if leaf is _TENSOR else leaf for leaf in kept])


def run_recomputed(
    function: Callable[..., list[Any]],
    given: Sequence[Any],
    layers: Sequence[keras.layers.Layer],
    *,
    name: str,
    policy: Any = None,
) -> list[Any] | None:
    """Return ``function(*given)``, tensors of tensors, which is run again in the backward pass.

    None if it made variables, so that it must run as it is. It calls ``layers``, with all nested
    ones among them.
    """
    return PureCall(function, layers, name, policy)(given)


def checkpoint_name(value: Any, name: str) -> Any:
    """Return ``value`` itself, marked with ``name`` for the policies that go by names.

    Raises:
        InvalidArgumentError: ``name`` is no string, or empty; ``value`` is no tensor, nor can it be
            made one.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"checkpoint_name(value, {name!r}): give a name, a string such as 'half'"
        )
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        value = keras.ops.convert_to_tensor(value)
    if not keras.ops.is_tensor(value):
        raise InvalidArgumentError(
            f"checkpoint_name(value, {name!r}): a {type(value).__name__} cannot be marked. Mark "
            "each tensor in it"
        )
    return mark(value, name)


def _require_unchanged(leaves: Sequence[Any], arguments: Any, name: str) -> None:
    """Raise InvalidArgumentError if ``arguments``, which had these ``leaves``, have others now."""
    now, _ = remat.flatten(arguments)
    if list(map(id, now)) != list(map(id, leaves)):
        raise InvalidArgumentError(
            f"{name!r} changes a list or dict that it is given, and its replay would do so again. "
            "Return the new values, and put them there outside"
        )


def _without_tensor(leaf: Any) -> Any:
    return _TENSOR if keras.ops.is_tensor(leaf) else leaf


class _ReplayScope(keras.StatelessScope):
    """A scope in which variables have the values that they had when they were first ``read``.

    Assignments stay in the scope; ``assigned`` has their variables.
    """

    def __init__(self, read: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self._read, self._outer = read, stateless_scope()
        self.assigned: dict[int, Any] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        before = self.get_current_value(variable)
        if before is not None:
            if id(variable) not in self.assigned:
                self._read[id(variable)] = variable, remat.kept(before)
            value = remat.assigned(before, value)
        # Keras keeps the new value by the identity of the variable, and not the variable.
        self.assigned[id(variable)] = variable
        super().add_update((variable, value))

    def get_current_value(self, variable: Any) -> Any:
        if id(variable) in self.assigned:
            return super().get_current_value(variable)
        if id(variable) not in self._read:
            value = self._outer.get_current_value(variable) if self._outer else None
            if value is None:
                value = backend_variable(variable)
            # Weights are updated after the backward pass.
            if value is not None and not variable.trainable:
                value = remat.snapshot(value)
            # With the variable, whose identity then stays its own.
            self._read[id(variable)] = variable, value
        return self._read[id(variable)][1]


class PureCall:
    """One call of a checkpointed function, and its replays, as a pure function.

    Attributes:
        read: The variables that it read, each with its value, by their identities.
        assigned: The variables that it assigns.
    """

    def __init__(
        self,
        function: Callable[..., list[Any]],
        layers: Sequence[keras.layers.Layer],
        name: str,
        policy: Any,
        modules: Sequence[Any] = (),
        used: Sequence[Any] = (),
        check_marks: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._function, self._layers, self._policy = function, layers, policy
        self._check_marks = check_marks
        self._name = section_name(name)
        self._around = entry_layer(), current_training(), autocast_dtype()
        self._contexts = groups_now(), time_loops_now()
        self.read: dict[int, tuple[Any, Any]] = {}
        self.assigned: list[Any] = []
        self._state = remat.CallState([*layers, *modules], self.read, used)
        # The first run is the forward pass, each other one a replay.
        self._runs = itertools.count()

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """Return the results for ``given`` tensors; None if the function made variables."""
        run, inputs = self.pure(given)
        with remat.named_scope(forward_scope(self._name)):
            name = backward_scope(self._name)
            recomputed = remat.recomputed(
                run,
                name=name,
                layers=self._layers,
                policy=self._policy,
                check_marks=self._check_marks,
            )
            results = recomputed(*inputs)
        return self.finish(results)

    def pure(self, given: Sequence[Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
        """Return the pure function of ``given`` tensors and their masks, and these together.

        Behind its results it returns their masks, losses, and new values of variables.
        """
        inputs, masked = append_masks(given)
        count = len(given)

        def run(*tensors: Any) -> list[Any]:
            attach_masks(tensors[:count], masked, tensors[count:])
            with self._around_the_call(), _ReplayScope(self.read) as scope:
                results, self._layer_numbers, losses = detach_losses(
                    self._layers, lambda: self._function(*tensors[:count])
                )
            if scope.losses:
                raise UnsupportedError(
                    f"{self._name!r} calls a layer that adds a loss, and it is not known which: "
                    "the function neither is the layer, nor closes over it, nor gets it as an "
                    "argument. Checkpoint the layer itself: kr.checkpoint(layer)"
                )
            self._count = len(results)
            outputs, self._masked = append_masks(results)
            self.assigned = list(scope.assigned.values())
            self._losses = len(losses)
            return [*outputs, *losses, *map(scope.get_current_value, self.assigned)]

        return run, inputs

    @property
    def has_masks(self) -> bool:
        """Whether the results that it made have masks."""
        return bool(self._masked)

    @property
    def result_counts(self) -> tuple[int, tuple[int, ...], int]:
        """Of the results: how many are outputs, the layers of losses, how many are assigned."""
        return self._count, tuple(self._layer_numbers), len(self.assigned)

    def finish(self, results: Sequence[Any]) -> list[Any] | None:
        """Return the outputs among the results of the pure function, and assign the variables.

        None if the function made variables.
        """
        # Keras gives a variable that was made in a scope its value when the outermost scope ends.
        if any(value is None for _, value in self.read.values()):
            return None
        return self._write_back(results)

    @contextlib.contextmanager
    def _around_the_call(self) -> Iterator[None]:
        """Return what was around the call: the backward pass replays it long after that ended."""
        layer, training, cast_to = self._around
        is_replay = next(self._runs) > 0
        state = self._state.replay() if is_replay else self._state.forward()
        as_before = pass_training(training, layer, is_replay=is_replay)
        groups, loops = self._contexts
        with state, as_before, autocast_to(cast_to), groups(), loops():
            yield

    def _write_back(self, results: Sequence[Any]) -> list[Any]:
        """Return the outputs, once losses were added and variables assigned."""
        ends = self._count + len(self._masked)
        outputs = list(results[: self._count])
        attach_masks(outputs, self._masked, results[self._count : ends])
        losses, new = results[ends : ends + self._losses], results[ends + self._losses :]
        for number, loss in zip(self._layer_numbers, losses):
            add_losses(self._layers[number], [loss])
        for variable, value in zip(self.assigned, new):
            # On PyTorch an assignment would change what replays of other functions find.
            remat.unshare(variable)
            variable.assign(value)
        return outputs


def _layers_among(used: Sequence[Any]) -> list[keras.layers.Layer]:
    """Return the layers among the values that a function uses, and those nested in them."""
    found: dict[keras.layers.Layer, None] = {}
    for layer in filter(_is_layer, keras.tree.flatten(used)):
        found.update(dict.fromkeys(layers_in(layer)))
    return list(found)


def _is_layer(value: Any) -> bool:
    return isinstance(value, keras.layers.Layer)


def _values_used_by(function: Any) -> list[Any]:
    """Return layers, modules of PyTorch and containers that a function is, has, or refers to.

    It is a method of them, closes over them, or finds them as globals.
    """
    if isinstance(function, functools.partial):
        return [*_values_used_by(function.func), *function.args, *function.keywords.values()]
    if _is_stateful(function):
        return [function]
    values = [getattr(function, "__self__", None)]
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return values
    for cell in plain.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            values.append(cell.cell_contents)
    values += [plain.__globals__[name] for name in code.co_names if name in plain.__globals__]
    containers = list, tuple, dict
    return [each for each in values if _is_stateful(each) or isinstance(each, containers)]


def _is_stateful(value: Any) -> bool:
    return _is_layer(value) or remat.is_plain_module(value)
