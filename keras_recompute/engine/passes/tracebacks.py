"""Tracebacks: under XLA, one for all operations that a call from the user's code makes.

TensorFlow notes for every operation by which calls it was made, and writes all of them out once XLA
compiles it. In a model these are some forty frames, 7 KiB, for thousands of operations that differ
in what TensorFlow, Keras and this package called. Copies of operations have no traceback. Without
XLA, where errors of a running program show them, they are given the original's. Neither changes the
program: both work on operations as they are written.

What sharing gains: benchmarks/notes/process_memory.md. Copying gains no memory.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from ...seams.tensorflow.tracebacks import set_traceback, traceback_as_run, traceback_here
from ...user_code import is_of_user
from ..graph.source_location import source_in, source_of

Result = TypeVar("Result")
# A file, a line number and a function's name, each.
Lines = tuple[tuple[str, int, str], ...]


def share_tracebacks(build: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``build``, whose operations share the traceback of the call.

    Operations made by a line of the user's code further in, as in a layer of their own, keep
    theirs: that line is worth more.
    """

    @functools.wraps(build)
    def run(*args: Any, **kwargs: Any) -> Result:
        if set_traceback is None:
            return build(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = build(*args, **kwargs)
        _share(graph.get_operations()[before:])
        return result

    return run


def copy_traceback(original: tf.Operation, copy: tf.Operation) -> None:
    """Let ``copy`` show the lines of the user's code that made ``original``."""
    if set_traceback is None or not original.traceback:
        return
    frames = [f for f in original.traceback.get_user_frames() if is_of_user(f.filename)]
    lines = [(frame.filename, frame.lineno, frame.name) for frame in frames]
    if lines:
        shared = _traceback_of(tuple(lines))
        set_traceback(copy, shared)
        set_traceback(
            original, shared
        )  # its own keeps what was read of it here, some KiB for each operation


# The traceback and the code of each sequence of lines, never removed: a traceback refers to code
# that it does not keep alive. So threads that ask together must be given the kept one.
_made: dict[Lines, tuple[Any, list[Any]]] = {}
_making = threading.Lock()


def _traceback_of(lines: Lines) -> Any:
    """Return the traceback that shows ``lines``, outermost first."""
    with _making:
        if lines not in _made:
            _made[lines] = _make_traceback(lines)
        return _made[lines][0]


def _make_traceback(lines: Lines) -> tuple[Any, list[Any]]:
    """Return a traceback that shows ``lines``, and the code that it refers to.

    TensorFlow takes only tracebacks of running code. So code runs that has the names of the lines,
    as Jinja's does for errors in templates. It runs in a thread of its own, in which no other code
    runs.
    """
    codes: list[Any] = []
    found: list[Any] = []
    done = _thread.allocate_lock()
    names: dict[str, Any] = {"found": found, "extract": traceback_as_run, "done": done}
    text = "found.append(extract()) or done.release()"
    for file, number, function in reversed(lines):
        code = compile("\n" * (number - 1) + text, file, "eval").replace(co_name=function)
        codes.append(code)
        text, names = "call()", {"call": functools.partial(eval, code, names)}
    done.acquire()
    _thread.start_new_thread(names["call"], ())
    done.acquire()
    return found[0], codes


def _share(operations: list[tf.Operation]) -> None:
    shared = traceback_here()
    source = source_in(shared)
    for operation in operations:
        if operation.traceback and source_of(operation) == source:
            set_traceback(operation, shared)
