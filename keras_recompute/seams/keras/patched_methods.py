"""Temporary replacement of methods of Keras's classes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def patch_constructor(cls: type, adapted: Callable[..., tuple[Any, Any]]) -> Iterator[None]:
    """Pass the constructor of ``cls`` and of its subclasses through ``adapted``.

    ``args, kwargs = adapted(self, *args, **kwargs)`` is called for each object made in the context.
    """

    def through(plain: Callable[..., Any], made: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = adapted(made, *args, **kwargs)
        plain(made, *args, **kwargs)

    with patch_method(cls, "__init__", through):
        yield


@contextlib.contextmanager
def patch_method(cls: Any, name: str, through: Callable[..., Any]) -> Iterator[None]:
    """Replace the method ``name`` of ``cls`` by ``through(plain, self, *args, **kwargs)``.

    Holds inside the context, for subclasses too. ``plain`` is the method that was there.
    """
    plain, own = getattr(cls, name), vars(cls).get(name, _ABSENT)

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return through(plain, self, *args, **kwargs)

    # Keras reads a constructor's signature in two ways; only one of them follows __wrapped__.
    if name == "__init__":
        del method.__wrapped__
    setattr(cls, name, method)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, own)
