"""The peak of the training step of a model: read from XLA's program, or measured in the process.

XLA compiles the whole step that ``fit`` runs, with the optimizer: gradients that wait for their
update count, and gradients that are used at once do not. Where XLA lacks an operation, as of
RandomZoom, the step is run twice without jit, as ``fit`` runs it then, and the process is
measured; variables keep their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import keras

from ...errors import DoesNotFitError, UnsupportedError, XlaUnsupportedError
from ...keras_backend import TENSORFLOW, current_backend
from ...liveness.abstract_models import is_abstract
from ...liveness.local_device import run_and_measure
from ...sizes import format_bytes
from ...user_code import warn_user
from ..execution.array_sizes import bytes_of_variables
from .backend_measures import text_of_specs, trained_step

# Of the plain step: what takes more saves next to nothing, and costs a replay all the same.
_HARDLY_LESS = 0.99
_MORE = 1.05  # of what a process was measured to take, to be called more


@dataclass
class StepPeaks:
    """Finds the peaks of the ``step`` of a model and of models that share its layers.

    Attributes:
        step: A ``TrainedStep``, or what can be ``compiled`` and says by ``found_by`` how, and by
            ``description`` what it is.
        device: The device for which XLA compiles; None is what TensorFlow runs on here.
        expected_bytes: What the process gives back to the system before it is measured.
        layers_of: The model whose layers are named; by default the candidate.
        is_compiled: False: the step runs without jit, and the process is measured.
        refusal: Why peaks are measured though they might be compiled; None as long as XLA can.
    """

    step: Any
    device: str | None = None
    expected_bytes: int = 2**28
    layers_of: Any = None
    is_compiled: bool = True
    refusal: XlaUnsupportedError | None = field(default=None, init=False)

    def of(self, candidate: Any) -> int:
        """Return the bytes at the peak: weights, what the optimizer keeps, gradients, activations.

        The batch is not among them, but with ``device``, where all that a run needs counts.
        """
        if self.is_compiled and self.refusal is None:
            try:
                return self._compiled(candidate)
            except XlaUnsupportedError as error:
                if self.device is not None:
                    raise
                self.refusal = error
        return self._measured(candidate)

    @property
    def method(self) -> str:
        """How the peaks were found, in words."""
        if not self.is_compiled:
            return f"measured in the process without jit: {self.step.description}"
        if self.refusal is None:
            return f"{self.step.found_by}: {self.step.description}"
        lacking = f"XLA has no {self.refusal.operation}"
        of_layer = f" of {self.refusal.layer!r}" if self.refusal.layer else ""
        return (
            f"measured in the process without jit, because {lacking}{of_layer}: "
            f"{self.step.description}"
        )

    def _compiled(self, candidate: Any) -> int:
        named = self.layers_of or candidate
        try:
            program = self.step.compiled(candidate, device=self.device, layers_of=named)
        except DoesNotFitError as error:
            return int(error.needed_bytes or 0)
        return program.peak_bytes if self.device is None else program.run_bytes

    def _measured(self, candidate: Any) -> int:
        import tensorflow as tf

        if is_abstract(candidate):
            why = "" if self.refusal is None else f". {self.refusal}"
            raise UnsupportedError(
                f"the step of {candidate.name!r} has to run to be measured, and its weights have "
                f"no values: build it outside of kr.liveness.abstract(){why}"
            ) from self.refusal
        function = tf.function(self.step.of(candidate), jit_compile=False, autograph=False)
        concrete = function.get_concrete_function(*self.step.specs)
        found, _ = run_and_measure(
            function,
            tuple(self.step.specs),
            {},
            concrete.variables,
            reserved_bytes=self.expected_bytes,
        )
        if found is None:
            raise UnsupportedError(
                f"{self.refusal} This system does not report the memory of a process, so the plan "
                "cannot be measured either. Plan by prove=False, or give needed_bytes="
            ) from self.refusal
        return found + bytes_of_variables(concrete.variables)


def lacking_saving(needed: int, plain_needed: int) -> str | None:
    """Return what is saved, in words, if ``needed`` bytes are hardly less than ``plain_needed``."""
    if needed <= _HARDLY_LESS * plain_needed:
        return None
    return "no memory" if needed >= plain_needed else "hardly any memory"


def warn_unless_less(
    checkpointed: keras.Model, plain: keras.Model, inputs: Any, targets: tuple[Any, ...] = ()
) -> None:
    """Warn where a step of ``checkpointed`` takes hardly less memory than one of ``plain``.

    Both are compiled on ``inputs``, a nest of types and shapes. Or they are measured in the
    process, where XLA cannot compile them, or ``plain`` is compiled with ``jit_compile=False``.
    """
    # A process is measured on TensorFlow alone.
    is_compiled = not plain.compiled or bool(plain.jit_compile) or current_backend() != TENSORFLOW
    peaks = StepPeaks(trained_step(plain, inputs, targets), is_compiled=is_compiled)
    needed, plain_needed = peaks.of(checkpointed), peaks.of(plain)
    # A process is measured to some percent, and not every program takes the same pages twice.
    if peaks.is_compiled and peaks.refusal is None:
        saving = lacking_saving(needed, plain_needed)
    else:
        saving = "no memory" if needed >= _MORE * plain_needed else None
    if saving:
        shapes = text_of_specs(keras.tree.flatten(inputs))
        warn_user(
            f"the checkpoints of {plain.name!r} save {saving}: a training step takes "
            f"{format_bytes(needed)} with them and {format_bytes(plain_needed)} without, on "
            f"{shapes} ({peaks.method}). Take larger batches, place checkpoints by "
            "keras_recompute.plan, or train the plain model."
        )
