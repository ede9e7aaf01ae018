"""Draw which room of the package imports which.

``python3 docs/rooms.py`` writes the picture in ARCHITECTURE.md again; ``--check`` only says whether
it is up to date. An arrow leads from a room to one that it imports. Arrows that follow from others
are left out: of A -> B -> C and A -> C the last. The imports are read from the source.
"""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- rooms: python3 docs/rooms.py -->\n```mermaid\n", "```\n<!-- end of rooms -->"


def module_name(file: Path) -> str:
    """Return the name under which ``file`` is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the room of a module of the package; the package itself is the room ''."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@functools.cache
def imports(file: Path) -> list[tuple[ast.stmt, str]]:
    """Return every import statement of ``file`` with the full name of a module that it loads.

    Statements inside functions count too.
    """
    here = module_name(file)
    package = here if file.stem == "__init__" else here.rpartition(".")[0]
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            base = ".".join([*above, *([node.module] if node.module else [])])
            # ``from . import strategy`` names a module; ``from .strategy import current`` a thing
            # in one.
            for alias in node.names:
                inside = ROOT / Path(*base.split("."), alias.name)
                is_module = inside.with_suffix(".py").exists() or (inside / "__init__.py").exists()
                found.append((node, f"{base}.{alias.name}" if is_module else base))
    return found


def arrows() -> dict[str, set[str]]:
    """Return, for each room, the rooms that it imports.

    Doors (``__init__`` of the package, and ``__main__``) are no rooms.
    """
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "keras_recompute").rglob("*.py")):
        here = room_of(module_name(file))
        if here and file.name != "__main__.py":
            loaded = {
                room_of(name)
                for _, name in imports(file)
                if name.split(".")[0] == "keras_recompute"
            }
            found.setdefault(here, set()).update(loaded - {here, ""})
    return found


def picture() -> str:
    """Return the rooms and the arrows between them in Mermaid's language.

    Rooms nearest to users come first. Arrows that follow from others are left out.
    """
    stands_on = arrows()
    below: dict[str, set[str]] = {}

    def all_below(room: str) -> set[str]:
        if room not in below:
            below[room] = set()  # a circle would be shown, not followed for ever
            below[room] = stands_on[room].union(*(all_below(other) for other in stands_on[room]))
        return below[room]

    rooms = sorted(stands_on, key=lambda room: (-len(all_below(room)), room))
    lines = ["graph TD"]
    for room in rooms:
        indirect = set().union(*(all_below(other) for other in stands_on[room]))
        direct = stands_on[room] - indirect
        lines += [f"    {room} --> {other}" for other in sorted(direct)] or [f"    {room}"]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the picture; with ``--check`` return 1 where that would change something."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    drawn = f"{before}{BEGIN}{picture()}{END}{rest.split(END)[1]}"
    if argv == ["--check"]:
        return int(drawn != text)
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
