"""The guides: scripts of text and code, from which a page and a notebook are made.

A guide has the form of Keras's own guides: a string that stands alone is Markdown, and all other
lines are code. The first string has a title and a description.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.py"))
LINK = re.compile(r"!?\[([^\]]+)\]\((?![a-z]+:)[^)]+\)")


class Cell(NamedTuple):
    """Markdown text, or code."""

    is_text: bool
    content: str


def cells(source: str) -> Iterator[Cell]:
    """Yield the cells of a guide in their order."""
    lines = source.splitlines()
    begin = 0  # of the code that is not yielded yet
    for node in ast.parse(source).body:
        text = getattr(node.value, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(text, str):
            yield from _code(lines[begin : node.lineno - 1])
            yield Cell(True, text.strip() if begin else _heading(text))
            begin = node.end_lineno
    yield from _code(lines[begin:])


def _code(lines: list[str]) -> Iterator[Cell]:
    code = "\n".join(lines).strip()
    if code:
        yield Cell(False, code)


def _heading(text: str) -> str:
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return f"# {fields['Title']}\n\n{fields['Description']}"


def page(guide: Path) -> str:
    """Return the page of a guide, as Markdown."""
    heading, *others = cells(guide.read_text())
    place = guide.relative_to(ROOT).as_posix()
    about = f"This page is a [notebook]({guide.stem}.ipynb) too.\nThe script is `{place}`."
    parts = [heading.content, about]
    for is_text, content in others:
        parts.append(content if is_text else f"```python\n{content}\n```")
    return "\n\n".join(parts) + "\n"


def notebook(guide: Path) -> str:
    """Return the notebook of a guide. Links that lead to other pages become their texts."""
    import nbformat.v4 as nb

    made = []
    for number, (is_text, content) in enumerate(cells(guide.read_text())):
        if is_text:
            cell = nb.new_markdown_cell(LINK.sub(r"\1", content))
        else:
            cell = nb.new_code_cell(content)
        cell.id = f"cell-{number}"  # equal guides give equal notebooks
        made.append(cell)
    return nb.writes(nb.new_notebook(cells=made))
