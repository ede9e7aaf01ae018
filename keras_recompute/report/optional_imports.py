"""Imports of the drawing libraries, which come with ``pip install "keras-recompute[report]"``.

Training needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..errors import ReportError

DRAWING, PAGES = ("matplotlib",), ("jinja2", "markupsafe", "plotly")


def require(name: str) -> Any:
    """Return the module ``name``. Raises ReportError that names the package to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ReportError(_missing(name.split(".", maxsplit=1)[0])) from error


def check_installed(names: tuple[str, ...]) -> None:
    """Raise ReportError if a package of ``names`` is not installed, without importing any."""
    for name in names:
        if find_spec(name) is None:
            raise ReportError(_missing(name))


def _missing(package: str) -> str:
    return (
        f'a report needs {package}, which is not installed: pip install "keras-recompute[report]"'
    )
