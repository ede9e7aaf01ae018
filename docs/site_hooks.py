"""Hooks of mkdocs: the site shows the repository's documents, with ``docs`` as its root.

The README is the home page, so the two cannot differ. ``PAGES`` lists the other documents that lie
outside of ``docs``, and the guides, which are scripts. Links are written as they lead in the
repository; here they are rewritten to where the site has the same document or picture.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path
from typing import Any

from guide_pages import GUIDES, notebook, page

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "static"
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
DRAWING = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ARROW = re.compile(r"(\w+) --> (\w+)")
CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)

# Documents outside of docs: where they lie in the repository, and where in the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    # Not benchmarks/README.md: that would be the address of docs/benchmarks.md.
    "benchmarks/README.md": "measured/index.md",
}
for _note in sorted((ROOT / "benchmarks" / "notes").glob("*.md")):
    PAGES[f"benchmarks/notes/{_note.name}"] = f"notes/{_note.name.replace('README', 'index')}"
for _guide in GUIDES:
    PAGES[_guide.relative_to(ROOT).as_posix()] = f"guides/{_guide.stem}.md"


def site_path(path: str) -> str:
    """Return where the site has a document or picture of the repository."""
    return PAGES.get(path, path.removeprefix("docs/"))


def repository_path(page: str) -> str:
    """Return where the repository has a page of the site."""
    places = {place: path for path, place in PAGES.items()}
    return places.get(page, f"docs/{page}")


def rewrite_links(markdown: str, path: str) -> str:
    """Return the document at ``path`` of the repository with its links as the site has them."""
    folder = posixpath.dirname(path)
    page_folder = posixpath.dirname(site_path(path))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        place = os.path.relpath(site_path(target), page_folder or ".")
        return f"]({place}{link[2] or ''})"

    parts = CODE.split(markdown)  # every second one is code
    parts[::2] = [LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures that lie outside of docs, and pages and notebooks of guides."""
    from mkdocs.structure.files import File

    pictures = [picture.relative_to(ROOT).as_posix() for picture in sorted(STATIC.rglob("*.png"))]
    places = {**PAGES, **{picture: picture for picture in pictures}}
    for guide in GUIDES:
        place = places.pop(guide.relative_to(ROOT).as_posix())
        files.append(File.generated(config, place, content=page(guide)))
        place = place.replace(".md", ".ipynb")
        files.append(File.generated(config, place, content=notebook(guide)))
    for path, place in places.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def arrows_as_table(markdown: str) -> str:
    """Return the document with a table in place of each drawing in Mermaid's language.

    GitHub draws these. A page of the site would have to load Mermaid from elsewhere.
    """

    def table(drawing: re.Match[str]) -> str:
        imported: dict[str, list[str]] = {}
        for begin, end in ARROW.findall(drawing[1]):
            imported.setdefault(begin, []).append(f"`{end}`")
        rows = [f"| `{room}` | {', '.join(others)} |" for room, others in imported.items()]
        return "\n".join(["| room | imports |", "|---|---|", *rows, ""])

    return DRAWING.sub(table, markdown)


def on_page_markdown(markdown: str, **names: Any) -> str:
    """Return a page with the links of the site, and with tables in place of drawings."""
    path = repository_path(names["page"].file.src_uri)
    return rewrite_links(arrows_as_table(markdown), path)
