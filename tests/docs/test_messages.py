"""The collector of messages, and the messages: at most three sentences that are read once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from test_words_of_code import RIDDLES

from docs import messages

SENTENCES_AT_MOST, WORDS_AT_MOST = 3, 60
ROOMS = sorted({messages.place_of(file).parts[0] for file in messages.FILES})
SOURCE = '''
def f(x):
    """Not a message, though it has words."""
    if x:
        raise ValueError(f"x={x!r}: give " + ("one" if x else "two words"))
    warnings.warn("it is {done}, " f"and {x} twice", stacklevel=2)
    parser.add_argument("--x", help="the x")
    print("a line")
    return "a text of five words", "short"
'''


def found_in(source: str) -> list[tuple[str, str]]:
    return [(kind, text) for _, kind, text in messages.strings(ast.parse(source))]


def test_the_collector_finds_what_a_user_may_read():
    assert found_in(SOURCE) == [
        ("error", "x={x}: give {'one' if x else 'two words'}"),
        ("warning", "it is {done}, and {x} twice"),
        ("help", "the x"),
        ("print", "a line"),
        ("text", "a text of five words"),
    ]


def test_the_command_prints_the_messages_of_a_room_with_their_lines():
    done = subprocess.run(
        [sys.executable, "docs/messages.py", "planning"],
        cwd=messages.PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"^planning: \d+ messages$", done.stdout, re.MULTILINE)
    assert re.search(r"^planning/budget\.py:\d+ \w+: a budget of ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("room", ROOMS)
def test_messages_are_short_and_read_once(room):
    for file in messages.FILES:
        if messages.place_of(file).parts[0] != room:
            continue
        for message in messages.messages(file):
            if message.kind not in ("error", "warning"):
                continue
            text = re.sub(r"\{[^{}]*(\{[^{}]*\}[^{}]*)*\}", "X", message.text)
            sentences = re.split(r"[.!?] (?=[A-Z`])", text)
            assert len(sentences) <= SENTENCES_AT_MOST, message
            assert len(text.split()) <= WORDS_AT_MOST, message
            assert not RIDDLES.search(text), message
