"""Names that a script may import, since many do and never use them, and that are refused when they are used."""

from __future__ import annotations

from typing import Any

from .absent import AbsentNameError, why_absent


class RefusedOnUse:
    """The base of what stands for such a name: calling it raises AbsentNameError."""

    _name = ""

    def __new__(cls, *_: Any, **__: Any) -> RefusedOnUse:
        """Raise AbsentNameError."""
        raise AbsentNameError(why_absent(cls._name))


def refused_on_use(name: str) -> type[RefusedOnUse]:
    """Return what stands for ``name``, given with its module. It is a class, so that ``isinstance`` may ask for it."""
    return type(name.rpartition(".")[2], (RefusedOnUse,), {"_name": name})
