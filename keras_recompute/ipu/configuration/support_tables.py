"""Tables for the documentation of what is emulated, generated from the code's lists.

    python3 -m keras_recompute.ipu.configuration.support_tables docs/ipu.md

writes them between the table marks of the file. Loads no TensorFlow.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ...atomic_files import atomic_write
from .keras2_compat import WAYS
from .missing_names import MISSING
from .options import ACCEPTED, OPTIONS
from .refusals import UNSUPPORTED

_MARK = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return the tables by name.

    ``unsupported`` lists what raises UnsupportedError, ``absent`` the missing names, ``keras`` the
    Keras 2 usages, and ``options`` the options of IPUConfig.
    """
    instead: dict[str, list[str]] = {}
    for name, why in MISSING.items():
        instead.setdefault(why, []).append(f"`{name}`")
    refusals = []
    for name, why in sorted(UNSUPPORTED.items(), key=lambda entry: entry[0].lower()):
        refusals.append(f"| {name} | {why} |")
    emulated, refused, others = [], [], []
    for option in OPTIONS:
        if option.becomes != ACCEPTED:
            emulated.append(f"| `{option.name}` | {option.becomes} |")
        if option.refused_as:
            refused.append(f"| `{option.name}` | {_values(option.name)}refused |")
        elif option.becomes == ACCEPTED:
            others.append(f"`{option.name}`")
    missing = [f"| {', '.join(sorted(names))} | {why} |" for why, names in instead.items()]
    usages = [f"| `{usage}` | {here} |" for usage, here in WAYS.items()]
    return {
        "unsupported": "\n".join(["| not emulated | because |", "|---|---|", *refusals]),
        "absent": "\n".join(
            [
                "| name | instead |",
                "|---|---|",
                *sorted(missing),
            ]
        ),
        "keras": "\n".join(
            [
                "| way | here |",
                "|---|---|",
                *usages,
            ]
        ),
        "options": "\n".join(
            [
                "| option | here |",
                "|---|---|",
                *sorted(emulated),
                *sorted(refused),
                f"| {', '.join(sorted(others))} | {ACCEPTED} |",
            ]
        ),
    }


def filled(text: str) -> str:
    """Return ``text`` with its table marks filled in.

    Raises KeyError for a mark that names no table.
    """
    found = tables()
    return _MARK.sub(lambda mark: f"{mark[1]}{found[mark[2]]}\n{mark[3]}", text)


def _values(name: str) -> str:
    return {"device_connection.type": "PRE_COMPILE and NEVER: "}.get(
        name, "other values than the default: "
    )


def main(paths: list[str]) -> int:
    """Write the tables into the files ``paths``; return 0."""
    for path in map(Path, paths):
        with atomic_write(path) as temporary:
            temporary.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
