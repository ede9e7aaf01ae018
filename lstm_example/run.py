"""One run from the command line to the exit code, keeping its figures however it ends.

An error is one line on standard error. ``python3 -X dev`` adds the traceback of an unexpected one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, NoReturn, Sequence, Union

from keras_recompute.errors import (
    DeviceError,
    InvalidArgumentError,
    RecomputeError,
    TargetError,
    UnsupportedError,
)
from keras_recompute.keras_backend import TORCH, current_backend
from keras_recompute.liveness.device_compilers import find_device, require_compiler
from keras_recompute.report.output import Output, print_error, watch_output

from .arguments import parse_arguments
from .data import Text, find_text
from .memory_check import check_memory, describe_shortage, is_out_of_memory
from .model_builder import BuildModel
from .network import generate
from .options import Options
from .output_checks import check_outputs
from .plan_sweep import Sweep
from .resumption import find_save_to_resume
from .run_report import write_figures
from .saves import hold_folder, list_saves
from .stop_signals import ignore_signals, raise_on_signals
from .training_run import TrainingRun
from .worker_processes import WorkerShare, join_cluster, start_workers, writes_files

PROGRAM = "recompute_lstm.py"
DONE, FAILED, IMPOSSIBLE, SIGNALLED = 0, 1, 2, 128  # plus the number of the signal, as shells count
_THREAD = "training"
Task = Union[TrainingRun, Sweep]


def run(argv: Sequence[str] | None, documentation: str, build_model: BuildModel) -> int:
    """Carry out a command line and return its exit code.

    DONE, FAILED, IMPOSSIBLE, or SIGNALLED plus the number of the signal that ended it.
    """
    with raise_on_signals() as let_signals_pass:
        task, failures = _carry_out(argv, documentation, build_model, let_signals_pass)
        unsaid = [error for error in failures if not isinstance(error, SystemExit)]
        if unsaid:
            print_error(f"{PROGRAM}: {'; '.join(_line(error, task) for error in unsaid)}")
    return _exit_code(failures[0], task) if failures else DONE


def exit_process(code: int) -> NoReturn:
    """End the process with ``code``, without waiting for a training thread that still computes."""
    ignore_signals()
    # Shutting Python down would wait for the compiled program in that thread.
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


def _carry_out(
    argv: Sequence[str] | None,
    documentation: str,
    build_model: BuildModel,
    let_signals_pass: Callable[[], None],
) -> tuple[Task | None, list[BaseException]]:
    """Return the task, if it came to that, and the errors, the first cause first."""
    task: Task | None = None
    failures: list[BaseException] = []
    with watch_output() as output:
        try:
            options = parse_arguments(argv, documentation)
            # All that can fail without TensorFlow comes before loading it.
            text = _check_and_find_text(options)
            if options.generate is not None:
                generate(options, output)
                raise SystemExit(DONE)
            resumed = find_save_to_resume(options, text)
            if options.workers:
                # The first worker would notice only after it has loaded TensorFlow.
                if options.save and options.save.exists():
                    with hold_folder(options.save):
                        pass
                script = build_model.__code__.co_filename
                raise SystemExit(
                    start_workers(script, sys.argv[1:] if argv is None else argv, options)
                )
            with join_cluster(options, text) as share, _saves_in(share):
                if options.sweep is None:
                    task = TrainingRun(share, build_model, resumed=resumed)
                else:
                    task = Sweep(options, build_model)
                _train(task, text, output)
            task.report()
        # --help, --generate, or workers that reported their errors themselves.
        except SystemExit as ended:
            if ended.code:
                failures.append(ended)
        except BaseException as error:  # none may take the figures along
            failures.append(error)
        let_signals_pass()
        try:
            # Written also after a failure: the figures so far are not lost.
            if task is not None and task.options.json is not None:
                write_figures(task.fields(), task.options.json)
        except Exception as error:  # of a file that cannot be written, above all
            failures.append(error)
    if output.error is not None and output.error not in failures:
        failures.append(output.error)
    return task, failures


def _saves_in(share: WorkerShare) -> ContextManager[Any]:
    folder = share.requested.save
    return nullcontext() if folder is None or share.number else hold_folder(folder)


def _check_and_find_text(options: Options) -> Text | None:
    """Return the text to learn, if any. Raises InvalidArgumentError for impossible options."""
    if options.generate is not None:
        return None
    if writes_files(options):
        check_outputs(options)
    check_memory(options)
    # PyTorch's programs are recorded, and no compiler is asked.
    if options.device and current_backend() != TORCH:
        try:
            require_compiler(find_device(options.device))
        except DeviceError as error:
            raise InvalidArgumentError(f"--device {options.device}: {error}") from error
    return find_text(options) if options.is_text else None


def _train(task: Task, text: Text | None, output: Output) -> None:
    """Train in a thread, since a compiled program cannot be interrupted but waiting for it can.

    Raises OutputError once nothing can be printed any more, unless the run writes files.
    """
    failures: list[BaseException] = []

    def work() -> None:
        try:
            task.train(text)
        except BaseException as error:  # handed to the main thread, which decides what to say
            failures.append(error)

    keeps_files = task.options.json or task.options.report or task.options.save or task.options.log
    worker = threading.Thread(target=work, name=_THREAD, daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            # With a timeout, so that signals are handled while the program runs.
            worker.join(0.2)
            if output.error is not None and not keeps_files:
                raise output.error
    finally:  # the live bar must not outlive the training
        task.progress.stop()
    if failures:
        raise failures[0]


def _exit_code(error: BaseException, task: Task | None) -> int:
    if isinstance(error, SystemExit):
        return int(error.code or DONE)
    if isinstance(error, KeyboardInterrupt):
        return SIGNALLED + getattr(error, "number", int(signal.SIGINT))
    is_refused = isinstance(error, InvalidArgumentError) or (
        task is None and isinstance(error, (TargetError, UnsupportedError))
    )
    return IMPOSSIBLE if is_refused else FAILED


def _resume_hint(task: Task | None) -> str:
    if task is None or task.options.save is None:
        return ""
    # Read from the folder: a signal may come between a save and the note that it was made.
    saves = list_saves(task.options.save)
    return f"; --resume goes on from {saves[-1]}" if saves else "; there is no save yet"


def _line(error: BaseException, task: Task | None) -> str:
    """Return the line that reports ``error``."""
    if isinstance(error, RecomputeError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        by = f" by {error}" if str(error) else ""
        done = task.updates if task else 0
        kept = f"what was reported is kept{_resume_hint(task)}"
        return f"interrupted{by} after {done} updates; {kept}"
    if task is not None and is_out_of_memory(error):
        return describe_shortage(task.options)
    if sys.flags.dev_mode:
        traceback.print_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
