"""Names that can be imported but raise when they are used.

Many scripts import such names without ever using them.
"""

from __future__ import annotations

from typing import Any

from .missing_names import AbsentNameError, why_missing


class LazyRefusal:
    """The base class of these names; calling one raises AbsentNameError."""

    _name = ""

    def __new__(cls, *_: Any, **__: Any) -> LazyRefusal:
        """Raise AbsentNameError."""
        raise AbsentNameError(why_missing(cls._name))


def refuse_on_use(name: str) -> type[LazyRefusal]:
    """Return a class that raises AbsentNameError when it is called.

    ``name`` is given with its module. It is a class so that ``isinstance`` accepts it.
    """
    return type(name.rpartition(".")[2], (LazyRefusal,), {"_name": name})
