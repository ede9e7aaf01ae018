"""Keep TensorFlow's start-up lines out of what this project's commands print.

While its libraries load, TensorFlow writes lines such as "oneDNN custom operations are on" to
standard error, once for each library and whatever TF_CPP_MIN_LOG_LEVEL says. Here that level is
applied to them too. It is 2, which hides information and warnings, where the user has set none.

Importing the package does not use this: in a user's own program TensorFlow prints as it does.
Runs on Python 3.8.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import Any, Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_DEFAULT = "2"  # hides information and warnings
# Lines begin with their severity, or before TensorFlow 2.21 with the date in front of it.
_OF_SEVERITY = r"({letters})\d{{4}} |\d{{4}}-\d\d-\d\d [\d:.]+: ({letters}) "
# These belong to lines of information.
_WITHOUT_SEVERITY = r"WARNING: All log messages before absl|To enable the following instructions"
# Errors by their severity, and no more than information: CUDA's libraries register themselves
# twice, and a machine without a GPU has no driver to initialize.
_HARMLESS = r".*(Unable to register cu\w+ factory|failed call to cuInit)"
# Runs in a process of its own, so that the last words of a process that crashes are shown.
_FILTER = """
import re, sys
is_hidden = re.compile(sys.argv[1].encode()).match
for line in sys.stdin.buffer:
    if not is_hidden(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def load_tensorflow(*, list_devices: bool = True) -> Any:
    """Import TensorFlow without its start-up lines, and return it.

    With ``list_devices`` also those lines are hidden that it writes when it first looks for a GPU.
    """
    with hide_startup_lines():
        import tensorflow as tf

        if list_devices:
            tf.config.list_physical_devices()
    return tf


@contextmanager
def hide_startup_lines() -> Iterator[None]:
    """Hide what TensorFlow writes to standard error when a block loads it first.

    Other lines are shown as they are, though after a moment. Where the user has set
    TF_CPP_MIN_LOG_LEVEL, lines of that severity and above are shown.
    """
    hidden = _hidden_lines(os.environ.get(LEVEL))
    os.environ.setdefault(LEVEL, _DEFAULT)
    if hidden is None or "tensorflow" in sys.modules:
        yield
        return
    try:
        # TensorFlow writes to the descriptor itself, past Python's stream.
        shown = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    try:
        reader = subprocess.Popen(
            [sys.executable or "python3", "-I", "-S", "-c", _FILTER, hidden],
            stdin=subprocess.PIPE,
            # Control-C is for the command. The reader ends when the command does.
            start_new_session=True,
        )
    except OSError:  # no process can be started: the lines are shown
        os.close(shown)
        yield
        return
    assert reader.stdin is not None
    _flush()
    os.dup2(reader.stdin.fileno(), 2)
    try:
        yield
    finally:
        _flush()
        os.dup2(shown, 2)
        os.close(shown)
        reader.stdin.close()
        reader.wait()


def _hidden_lines(level: str | None) -> str | None:
    """Return the pattern of lines to hide at a level of TF_CPP_MIN_LOG_LEVEL; None hides none."""
    number = level if level is not None else _DEFAULT
    letters = {"1": "I", "2": "I|W", "3": "I|W|E"}.get(number)
    if letters is None:
        return None
    patterns = [_OF_SEVERITY.format(letters=letters), _WITHOUT_SEVERITY]
    if level is None:
        patterns.append(_HARMLESS)
    return "|".join(patterns)


def _flush() -> None:
    if sys.stderr is not None:  # as under pythonw
        sys.stderr.flush()
