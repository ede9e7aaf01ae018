"""docs/how-it-works.md against the engine: each block of Python prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def printed_and_shown(page: str) -> list[tuple[str, str]]:
    """Run the Python of ``page``; return what each block prints, and the text below the block."""
    names: dict = {}
    pairs = []
    blocks = BLOCK.findall(page)
    for number, (language, code) in enumerate(blocks):
        if language == "text":
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            # With a file name of as many characters as lines need to fit.
            exec(compile(code, "block.py", "exec"), names)
        following = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
        shown = following[1] if following[0] == "text" else ""
        lines = [line.rstrip() for line in output.getvalue().splitlines()]
        pairs.append(("".join(f"{line}\n" for line in lines), shown))
    return pairs


def test_what_the_page_shows_is_what_the_engine_prints(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    pairs = printed_and_shown(PAGE.read_text())
    assert len(pairs) > 5
    for printed, shown in pairs:
        assert printed == shown
