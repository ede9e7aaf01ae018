"""A function that is wrapped by another one, and looks like itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgumentError
from .policy_checks import require_policy


class WrappedFunction:
    """A base class of checkpointed functions: it has the name and the attributes of ``fn``.

    Attributes:
        policy: What is saved of the function's intermediate values.

    Raises:
        InvalidArgumentError: ``fn`` is not callable, or ``policy`` is no policy.
    """

    def __init__(self, fn: Callable[..., Any], policy: Any) -> None:
        require_policy(policy)
        if not callable(fn):
            raise InvalidArgumentError(
                f"checkpoint({fn!r}): this cannot be called. Give a function, a layer or another "
                "callable"
            )
        self.__wrapped__ = fn
        self.policy = policy
        name = getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
        self.__name__ = name
        self.__qualname__ = getattr(fn, "__qualname__", name)
        self.__module__ = getattr(fn, "__module__", type(fn).__module__)
        self.__doc__ = fn.__doc__

    def __getattr__(self, name: str) -> Any:
        # Not yet there while an instance is copied.
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for callers that look at it, such as Lambda layers."""
        try:
            return inspect.signature(self.__wrapped__)
        except (TypeError, ValueError) as error:  # of functions written in C
            raise AttributeError("__signature__") from error

    def __get__(self, instance: Any, owner: Any = None) -> WrappedFunction:
        """Bind to an object, so that a method can be decorated."""
        if instance is None or not hasattr(self.__wrapped__, "__get__"):
            return self
        return type(self)(self.__wrapped__.__get__(instance, owner), self.policy)

    def __repr__(self) -> str:
        return f"checkpoint({self.__wrapped__!r}, policy={self.policy!r})"
