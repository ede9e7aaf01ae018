"""Print all that the package and its example say to their users, to be read in one go.

``python3 docs/messages.py`` reads the syntax trees and prints, for each room, the errors that are
raised, the warnings, the help of command lines, and other sentences, with file and line.
``python3 docs/messages.py models layers`` prints these rooms only.

A message is a string outside of docstrings that stands in a call which raises, warns, prints or
describes an option, or that has at least four words. Values in it are shown as their expressions
in braces.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, EXAMPLE = ROOT / "keras_recompute", ROOT / "lstm_example"
FILES = [*sorted(PACKAGE.rglob("*.py")), *sorted(EXAMPLE.rglob("*.py"))]
FEWEST_WORDS = 4  # of a string that no call marks as a message
# Parts of the names of calls, and what a string in them is.
KINDS = (("Error", "error"), ("Warning", "warning"), ("warn", "warning"), ("print", "print"))
HELP = ("help", "description", "epilog")


@dataclass(frozen=True)
class Message:
    """A string of the package that a user may read."""

    file: Path
    line: int
    kind: str
    text: str

    @property
    def room(self) -> str:
        """The folder or the file directly in the package; the example is a room too."""
        return place_of(self.file).parts[0].removesuffix(".py")

    def __str__(self) -> str:
        return f"{place_of(self.file)}:{self.line} {self.kind}: {self.text}"


def place_of(file: Path) -> Path:
    """Return the path of a file in the package, and of the example's in the repository."""
    return file.relative_to(PACKAGE if PACKAGE in file.parents else ROOT)


def text_of(node: ast.expr) -> str | None:
    """Return the text of a string expression; None where ``node`` is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_part, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        if left is None and right is None:
            return None
        return _or_braces(node.left, left) + _or_braces(node.right, right)
    return None


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return text_of(value) or ""


def _or_braces(node: ast.expr, text: str | None) -> str:
    return f"{{{ast.unparse(node)}}}" if text is None else text


def kind_of(call: ast.Call) -> str | None:
    """Return what the strings in a call are: an error, a warning, printed; None for others."""
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    for part, kind in KINDS:
        if part in name:
            return kind
    return None


def strings(node: ast.AST, kind: str | None = None) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of the messages below ``node``, which is in a call of ``kind``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        text = text_of(child) if isinstance(child, ast.expr) else None
        if text is not None:
            if len(text.split()) >= (2 if kind else FEWEST_WORDS):
                yield child.lineno, kind or "text", " ".join(text.split())
            continue
        inner = kind
        if isinstance(child, ast.Call):
            inner = kind_of(child) or kind
        elif isinstance(child, ast.keyword) and child.arg in HELP:
            inner = "help"
        yield from strings(child, inner)


def messages(file: Path) -> list[Message]:
    """Return the messages of a file, by line."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return sorted(
        (Message(file, *found) for found in strings(tree)), key=lambda message: message.line
    )


def main(rooms: list[str]) -> int:
    """Print the messages of ``rooms``; of all where that is empty."""
    found: dict[str, list[Message]] = {}
    for file in FILES:
        for message in messages(file):
            found.setdefault(message.room, []).append(message)
    for room in rooms or found:
        print(f"\n{room}: {len(found.get(room, []))} messages")
        for message in found.get(room, []):
            print(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
