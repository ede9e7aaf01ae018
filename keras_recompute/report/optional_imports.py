"""The packages that draw, which training needs none of: ``pip install "keras-recompute[report]"``
brings them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..errors import ReportError

DRAWING, PAGES = ("matplotlib",), ("jinja2", "markupsafe", "plotly")


def require(name: str) -> Any:
    """Return a module of these packages. Raises ReportError that says what to install where it is
    not there.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ReportError(_missing(name.split(".", maxsplit=1)[0])) from error


def check_installed(names: tuple[str, ...]) -> None:
    """Raise ReportError where one of these packages is not there, without loading any."""
    for name in names:
        if find_spec(name) is None:
            raise ReportError(_missing(name))


def _missing(package: str) -> str:
    return (
        f'a report needs {package}, which is not installed: pip install "keras-recompute[report]"'
    )
