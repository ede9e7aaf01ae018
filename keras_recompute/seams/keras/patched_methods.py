"""Methods of Keras's classes, gone through by way of a function of ours."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def patch_constructor(cls: type, adapted: Callable[..., tuple[Any, Any]]) -> Iterator[None]:
    """Construct objects of ``cls``, and of classes on it, with ``args, kwargs = adapted(self, *args, **kwargs)``."""

    def through(plain: Callable[..., Any], made: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = adapted(made, *args, **kwargs)
        plain(made, *args, **kwargs)

    with patch_method(cls, "__init__", through):
        yield


@contextlib.contextmanager
def patch_method(cls: Any, name: str, through: Callable[..., Any]) -> Iterator[None]:
    """Have the method ``name`` of ``cls``, and of classes on it, be ``through(plain, self, *args, **kwargs)``."""
    plain, own = getattr(cls, name), vars(cls).get(name, _ABSENT)

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return through(plain, self, *args, **kwargs)

    if name == "__init__":  # Keras asks for its signature in two ways, of which only one would see the plain method's
        del method.__wrapped__
    setattr(cls, name, method)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, own)
