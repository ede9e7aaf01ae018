"""Run a script written for Graphcore's TensorFlow 2 Keras on stock TensorFlow.

    python3 -m keras_recompute.ipu SCRIPT [ARGS...]

The script must keep to the names and options that docs/ipu.md lists. It finds Graphcore's names
(``tensorflow.python.ipu``, ``tf.keras.ipu``, ``ipu_tensorflow_addons``, ``pva``) and runs as under
``python3 SCRIPT [ARGS...]``. So do the Python processes that it starts, through the environment's
PYTHONPATH. Beside the Poplar SDK, which has these names, it runs with the SDK's own.
"""

from __future__ import annotations

import io
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from keras_recompute.ipu import install


def main(arguments: list[str], *, program: str = "python3 -m keras_recompute.ipu") -> int:
    """Run a script with its arguments; return 2 if there is no script to run.

    Exceptions of the script pass through. ``program`` is the command line before ``arguments``, for
    messages.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__, end="")
        return 0
    if not arguments or arguments[0].startswith("-"):
        usage = f"usage: {program} SCRIPT [ARGS...]"
        print(
            f"{usage}: {f'unknown option {arguments[0]}' if arguments else 'no script is named'}",
            file=sys.stderr,
        )
        return 2
    script = arguments[0]
    try:
        # Auditing hooks see the script as they do under python3.
        with io.open_code(os.path.abspath(script)) as file:
            source = file.read()
    except (OSError, ValueError) as error:  # ValueError: of a character that no name can have
        print(
            f"{program}: {script!r:.300} cannot be read: {getattr(error, 'strerror', error)}",
            file=sys.stderr,
        )
        return 2
    if install():
        _install_in_subprocesses()
    if not getattr(sys.flags, "safe_path", False):
        # python3 puts the script's folder there, unless it runs in safe mode.
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.argv = arguments
    # The name that python3 itself gives to a script: its full path since Python 3.9.
    name = os.path.abspath(script) if sys.version_info >= (3, 9) else script
    try:
        # Without what this file imports from __future__.
        _run(compile(source, name, "exec", dont_inherit=True), name)
    except SystemExit:
        raise
    except BaseException as error:
        # Shown as python3 would, without the frames of this file, and then raised in silence for
        # the exit code.
        error.__traceback__ = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None
        raise
    return 0


def _install_in_subprocesses() -> None:
    """Put ``subprocess_hook`` on PYTHONPATH, where the script's Python processes find it."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "subprocess_hook")
    given = os.environ.get("PYTHONPATH", "")
    if folder not in given.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [given])])


def _run(code: CodeType, name: str) -> None:
    """Execute ``code`` as the module ``__main__`` of file ``name``."""
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", name)
    vars(module).update(
        __file__=name, __builtins__=__builtins__, __cached__=None, __loader__=loader
    )
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return ``traceback`` without the leading frames of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    # Kept, because the script takes this module's name: its contents must outlive the script.
    this = sys.modules["__main__"]
    code = main(sys.argv[1:])
    if code:
        sys.exit(code)
