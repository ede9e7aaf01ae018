"""Models of the example's plans, and their training programs as compiled.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, ContextManager, Iterator

from keras_recompute.liveness import Program
from keras_recompute.sizes import format_bytes

from .progress import Progress
from .run_record import RunRecord
from .sequence_plans import SequencePlan

# Takes TensorFlow, the options and a number of checkpoints; returns a compiled model.
BuildModel = Callable[[Any, Any, int], Any]


class ModelBuilder:
    """Builds models from the seed, each independent of those before, and records plan and program.

    ``model`` is the one that was built last. Each way to build one is a subclass.
    """

    model: Any
    verbs = "compiling", "compiled"

    def __init__(self, record: RunRecord, progress: Progress) -> None:
        self.record, self.options, self.progress = record, record.options, progress
        record.versions.update(self._load())

    def build(self, plan: SequencePlan) -> None:
        """Build the model for ``plan``."""
        self.model = self._new_model(plan)
        self.record.plan, self.record.parameters = plan, self.model.count_params()

    def compile(self, plan: SequencePlan) -> Program:
        """Build the model for ``plan`` and compile its training program, without running it."""
        self.build(plan)
        began, (doing, done) = time.perf_counter(), self.verbs
        self.progress.say(f"{doing} the training program: {plan}")
        with self.scope():
            self.record.program = program = self._profile()
        seconds = program.compile_seconds or time.perf_counter() - began
        peak = format_bytes(program.peak_bytes)
        self.progress.say(f"{done} in {seconds:.1f} s: the peak will be {peak}")
        return program

    def scope(self) -> ContextManager[Any]:
        """Return the context in which the model is trained."""
        return contextlib.nullcontext()

    def data(self, microbatches: Iterator[Any]) -> Any:
        """Return ``microbatches`` as ``fit`` takes them."""
        return microbatches

    def last_update(self, logs: dict[str, Any]) -> tuple[float, float | None]:
        """Return loss and gradient norm of the update whose ``logs`` Keras has; None if unknown."""
        raise NotImplementedError

    def read_report(self) -> None:
        """Record the program as the device reports it after training, if it does."""

    def _load(self) -> dict[str, str]:
        """Load the framework and return the versions of what was loaded."""
        raise NotImplementedError

    def _new_model(self, plan: SequencePlan) -> Any:
        raise NotImplementedError

    def _profile(self) -> Program:
        raise NotImplementedError
