"""What may be given as a policy: said where it is given, since it is called much later."""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import InvalidArgumentError


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
