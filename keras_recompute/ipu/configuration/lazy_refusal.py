"""Names that a script may import, since many do and never use them, and that are refused when they are used."""

from __future__ import annotations

from typing import Any

from .missing_names import AbsentNameError, why_missing


class LazyRefusal:
    """The base of what stands for such a name: calling it raises AbsentNameError."""

    _name = ""

    def __new__(cls, *_: Any, **__: Any) -> LazyRefusal:
        """Raise AbsentNameError."""
        raise AbsentNameError(why_missing(cls._name))


def refuse_on_use(name: str) -> type[LazyRefusal]:
    """Return what stands for ``name``, given with its module. It is a class, so that ``isinstance`` may ask for it."""
    return type(name.rpartition(".")[2], (LazyRefusal,), {"_name": name})
