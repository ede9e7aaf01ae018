"""The first training step of a script: the model and the batch, taken where ``fit`` is called.

The script runs as under ``python3 SCRIPT``, with Keras's ``fit`` and ``train_on_batch`` replaced.
Keras is not imported before the script does it, which may choose the backend first.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InvalidArgumentError, RecomputeError
from ..keras_registration import once_keras_is_imported
from ..seams.keras.patched_methods import patch_method
from ..seams.keras.training import first_batch_of_fit
from ..user_code import Frame, call_named, error_line, source_among

_TRAINING = "fit", "train_on_batch"
_NAMED = "a call of Keras's fit or train_on_batch"
_LOOPS = "In a loop of your own kr.checkpoint recomputes, and kr.liveness.profile reads its step"
_OF_BATCHES = (
    *("x", "y", "sample_weight", "class_weight"),
    *("batch_size", "steps_per_epoch", "validation_split"),
)


@dataclass(frozen=True)
class FirstStep:
    """A model that a script was about to train.

    Attributes:
        model: The model, as the script compiled it.
        batch: The first batch, as ``fit`` passes it on: ``(x,)``, ``(x, y)`` or ``(x, y, weights)``
            of arrays.
        where: The line of the script, in words.
    """

    model: Any
    batch: tuple[Any, ...]
    where: str


def run_to_first_step(
    source: str,
    arguments: Sequence[str],
    *,
    then: Callable[[Callable[[], FirstStep]], NoReturn],
) -> NoReturn:
    """Run a script, or a function as ``module:function``, and call ``then`` where it trains.

    ``then`` is given a function that takes the first step there, and must not return: nothing is
    trained, and nothing behind that line runs. Errors of that function are for ``then`` alone, as
    the script could catch them and go on.

    Raises:
        InvalidArgumentError: There is no such script, or it ended or failed before it trained
            anything. One line says which.
    """
    run = _runner(source, arguments)
    process = os.getpid()
    patches = ExitStack()

    def train(plain: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> NoReturn:
        def first_step() -> FirstStep:
            if os.getpid() != process:
                raise InvalidArgumentError(
                    f"{source} trains in a process that it starts: name the function that trains, "
                    "as module:function"
                )
            given = inspect.signature(plain).bind(model, *args, **kwargs)
            batch = _first_batch(plain.__name__, given.arguments)
            return FirstStep(model, batch, f"{plain.__name__} at {source_among(_frames())}")

        patches.close()  # what is compiled then is Keras's own
        then(first_step)

    def update(*_: Any, **__: Any) -> NoReturn:
        def refuse() -> NoReturn:
            raise InvalidArgumentError(
                f"{source} trains in a loop of its own, which updates weights at "
                f"{source_among(_frames())}. {_LOOPS}"
            )

        patches.close()
        then(refuse)

    def patch() -> None:
        import keras

        for name in _TRAINING:
            patches.enter_context(patch_method(keras.Model, name, train))
        patches.enter_context(patch_method(keras.optimizers.Optimizer, "apply", update))

    with patches:
        once_keras_is_imported(patch)
        try:
            run()
        except RecomputeError:
            raise
        except SystemExit as ended:
            code = "" if ended.code is None else f" with {ended.code!r:.80}"
            raise InvalidArgumentError(f"{source} ended{code} before {_NAMED}") from ended
        except Exception as error:
            at = _line_in(source, error)
            raise InvalidArgumentError(f"{at}: {error_line(error)}, before {_NAMED}") from error
    raise InvalidArgumentError(f"{source} ended without {_NAMED}. {_LOOPS}")


def _runner(source: str, arguments: Sequence[str]) -> Callable[[], object]:
    """Return what runs ``source``; raise InvalidArgumentError where there is no such script."""
    module, _, function = source.rpartition(":")
    if module and not os.path.exists(source):
        sys.argv = [source, *arguments]
        return lambda: call_named(module, function)
    path = Path(source)
    if not path.is_file():
        raise InvalidArgumentError(
            f"{source!r} is no file: give a script, or module:function of what trains"
        )
    sys.argv = [source, *arguments]
    # python3 puts the script's folder there.
    sys.path.insert(0, str(path.resolve().parent))
    return lambda: runpy.run_path(source, run_name="__main__")


def _first_batch(method: str, given: dict[str, Any]) -> tuple[Any, ...]:
    options = {name: given[name] for name in _OF_BATCHES if name in given}
    if method == "train_on_batch":
        import keras

        options["batch_size"] = keras.tree.flatten(given["x"])[0].shape[0]
    batch = first_batch_of_fit(**options)
    if not batch:
        raise InvalidArgumentError(f"{method} was given no data")
    return batch


def _frames() -> Iterator[Frame]:
    """Yield the frames of the call stack, innermost first."""
    for frame in reversed(traceback.extract_stack()):
        yield frame.filename, frame.lineno or 0, frame.name


def _line_in(source: str, error: BaseException) -> str:
    """Return the innermost line of the script in the traceback of ``error``, or its name."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == source:
            return f"{source}:{frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename == source:
        return f"{source}:{error.lineno}"
    return source
