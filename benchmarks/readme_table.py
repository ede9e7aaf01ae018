"""Tables in documents: each stands between two comments that name it."""

from __future__ import annotations

from pathlib import Path


def replace_table(path: Path, name: str, text: str) -> None:
    """Put ``text`` in place of the table ``name`` in the document at ``path``.

    Raises SystemExit where it has none.
    """
    before, begin, rest = path.read_text().partition(f"<!-- table:{name} -->\n")
    _, end, after = rest.partition(f"<!-- /table:{name} -->")
    if not (begin and end):
        raise SystemExit(
            f"{path}: it has no place for the table, between <!-- table:{name} --> and <!-- "
            f"/table:{name} -->"
        )
    path.write_text(f"{before}{begin}{text}\n{end}{after}")
