"""What may be given as a policy: said where it is given, since it is called much later."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgumentError
from ..user_code import warn_user


def require_policy(policy: Any) -> None:
    """Raise InvalidArgumentError if ``policy`` is no policy, or a function that makes one."""
    if not callable(policy):
        raise InvalidArgumentError(
            f"policy={policy!r} is not a policy: give one of keras_recompute.policies, or a "
            "callable"
        )
    # That module's policies are objects.
    if inspect.isfunction(policy) and policy.__module__.endswith(".engine.policies"):
        raise InvalidArgumentError(
            f"policy={policy.__name__} is not a policy, but a function that returns one: call it, "
            "such as save_names('half')"
        )


def unknown_names(named: Iterable[str], marked: Iterable[str], function: str) -> str | None:
    """Return in words which ``named`` values ``function`` has not ``marked``; None if none."""
    unknown = set(named).difference(marked)
    if not unknown:
        return None
    known = ", ".join(map(repr, sorted(marked)))
    marks = f"it marks {known}" if known else "it marks no value at all"
    return (
        f"names {', '.join(map(repr, sorted(unknown)))}, but {function!r} marks no such value: "
        f"{marks}. Mark values with checkpoint_name(x, name)."
    )


def warn_of_unknown_names(
    policy: Any, named: Iterable[str], marked: Iterable[str], function: str
) -> None:
    """Warn if ``policy``, which goes by ``named`` values, has one that is not ``marked``."""
    unknown = unknown_names(named, marked, function)
    if unknown:
        warn_user(f"policy {policy!r} {unknown} Nothing is saved for it")


def require_parameters(policy: Any, wanted: str, *values: str, **options: str) -> None:
    """Raise InvalidArgumentError if ``policy``, of the user's own, cannot be called like that.

    ``wanted`` says in words what a policy of the backend is given.
    """
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # of functions written in C
        return
    try:
        signature.bind(*values, **options)
    except TypeError:
        raise InvalidArgumentError(f"policy={policy!r} takes {signature}, and {wanted}") from None
