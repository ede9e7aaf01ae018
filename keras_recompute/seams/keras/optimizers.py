"""Private parts of Keras's optimizers: the update without its bookkeeping, and weight decay.

Importing this module does not load Keras.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .layers import backend_variable


def trained_variables(optimizer: Any) -> list[Any]:
    """Return the variables that a built ``optimizer`` trains."""
    return list(optimizer._trainable_variables)


def has_undecayed(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Whether weight decay leaves out one of ``variables``."""
    return not all(map(optimizer._use_weight_decay, variables))


def update_now(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Update ``variables``, as ``apply`` does, without constraints and the count of updates."""
    # Past what ``updates_left_out`` puts in its place.
    type(optimizer)._backend_apply_gradients(optimizer, list(gradients), list(variables))


@contextlib.contextmanager
def methods_replaced(optimizer: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Return a context in which ``optimizer`` has these methods in place of its own."""
    # Not by setattr: Keras would track an attribute.
    vars(optimizer).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(optimizer)[name]


@contextlib.contextmanager
def updates_left_out(
    optimizer: Any, begin: Callable[[Sequence[Any], Sequence[Any]], Callable[[Any], bool]]
) -> Iterator[None]:
    """Return a context in which ``apply`` leaves out variables that are updated already.

    ``begin`` is called with the gradients and variables that ``apply`` was given. It returns a
    function that says of a variable whether it is left out. All else is Keras's: the count of
    updates, warnings and constraints.
    """
    plain_apply, plain_update = optimizer.apply, optimizer._backend_apply_gradients
    left_out: Callable[[Any], bool]

    def apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        nonlocal left_out
        given = optimizer._trainable_variables if trainable_variables is None else None
        variables = list(trainable_variables) if given is None else list(given)
        left_out = begin(grads, variables)
        gradients = list(grads)
        for number, variable in enumerate(variables):
            if left_out(variable):
                gradients[number] = backend_variable(variable)  # Keras leaves out None
        return plain_apply(gradients, trainable_variables and variables)

    def update(grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        pairs = zip(grads, trainable_variables)
        kept = [(gradient, variable) for gradient, variable in pairs if not left_out(variable)]
        if kept:
            plain_update(*map(list, zip(*kept)))

    with methods_replaced(optimizer, apply=apply, _backend_apply_gradients=update):
        yield


@contextlib.contextmanager
def updates_in_groups(
    optimizer: Any, group_bytes: int, bytes_of: Callable[[Any], int]
) -> Iterator[None]:
    """Return a context in which ``apply`` updates the variables in groups, one after the other.

    ``bytes_of`` returns the size of a variable. Those of a group add up to ``group_bytes`` or more,
    except in the last one. Keras still clips, accumulates and averages all variables together. A
    second such context inside the first changes nothing.
    """
    if "_backend_update_step" in vars(optimizer):
        yield
        return
    plain_update = optimizer._backend_update_step

    def update(grads: Sequence[Any], trainable_variables: Sequence[Any], rate: Any) -> None:
        group: list[tuple[Any, Any]] = []
        taken = 0
        for pair in zip(grads, trainable_variables):
            group.append(pair)
            taken += bytes_of(pair[1])
            if taken >= group_bytes:
                plain_update(*map(list, zip(*group)), rate)
                group, taken = [], 0
        if group:
            plain_update(*map(list, zip(*group)), rate)

    with methods_replaced(optimizer, _backend_update_step=update):
        yield
