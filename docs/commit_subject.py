"""Check the subject of a commit message: ``python3 docs/commit_subject.py FILE``, as git calls it.

A subject is imperative, has at most 72 characters and no full stop. An empty line follows it, and
then the body, with reasons and figures.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
# Words that begin a sentence about the change instead of a command.
_NOT_IMPERATIVE = re.compile(r"(The|A|An|This|It|We|I)\b|\w+ed\b|\w+ing\b")
_VERBS = {"Bring", "Embed", "Exceed", "Feed", "Need", "Proceed", "Seed", "Shed", "Speed", "String"}
# Git writes these itself.
_OF_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def problems(message: str) -> list[str]:
    """Return what is wrong with a commit message, one line each."""
    # Git strips these lines after the hook has run.
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(_OF_GIT):
        return []
    found = []
    if not subject:
        found.append("the subject is empty: say in the imperative what the commit does")
    if len(subject) > LONGEST:
        found.append(
            f"the subject has {len(subject)} characters, and the most is {LONGEST}: "
            "put reasons and figures into the body"
        )
    if subject.endswith("."):
        found.append("the subject ends in a full stop: leave it out")
    first = subject.partition(" ")[0]
    if first not in _VERBS and _NOT_IMPERATIVE.match(subject):
        found.append(f"the subject begins with {first!r}: begin with a verb, such as Add or Fix")
    if len(lines) > 1 and lines[1]:
        found.append("the second line is not empty: it divides the subject from the body")
    return found


def main(argv: list[str]) -> int:
    """Print what is wrong with the message in the file ``argv[0]``; return 1 if anything is."""
    found = problems(Path(argv[0]).read_text(encoding="utf-8"))
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
