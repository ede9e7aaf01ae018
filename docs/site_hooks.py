"""Hooks of mkdocs: the pictures in ``static``, which pages refer to as they lie in the repository, belong to the site too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

STATIC = Path(__file__).resolve().parents[1] / "static"


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures."""
    for picture in sorted(STATIC.rglob("*.png")):
        name = picture.relative_to(STATIC.parent).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let a page refer to the pictures as the site has them."""
    return markdown.replace("](../static/", "](static/")
