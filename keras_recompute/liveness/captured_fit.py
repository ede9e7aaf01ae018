"""``capture_fit``: the program that ``fit`` runs on TensorFlow, captured by a Keras callback."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import RecomputeWarning
from ..keras_backend import require
from ..seams.tensorflow.concrete_functions import traces
from .compiled_program import CompiledProgram
from .keras_step import compiled_functions, layer_names
from .program import Program
from .tensorflow_functions import compile_trace


def capture_fit(*, batch_size: int | None = None, capacity_bytes: int | None = None) -> Any:
    """Return a Keras callback that captures the program which ``fit`` runs, after the first batch.

    ``capture.compiled`` is the ``CompiledProgram``, ``capture.program`` its record. It is the
    program of the trace that ran; of several, the one with the largest peak. Reading it compiles it
    once more and trains nothing. Both are None, with a RecomputeWarning that says why, if XLA does
    not compile the step or its shapes are unknown.

    Args:
        batch_size: Needed if the last batch is shorter than the others, since Keras then traces one
            step for any size.
        capacity_bytes: Memory of the device; the record keeps it.

    Examples:
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse", jit_compile=True)
        >>> capture = kr.liveness.capture_fit()
        >>> x, y = np.ones((4, 8)), np.ones(4)
        >>> history = model.fit(x, y, batch_size=4, verbose=0, callbacks=[capture])
        >>> capture.program.input_feed_bytes  # 4 * 8 and 4 numbers
        144
    """
    require("liveness.capture_fit")
    import keras

    class CaptureFit(keras.callbacks.Callback):
        """Keeps the program that ``fit`` runs in ``compiled`` and ``program``."""

        def __init__(self) -> None:
            super().__init__()
            self.compiled: CompiledProgram | None = None
            self.program: Program | None = None
            self._done = False

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self.compiled = self.program = None
            self._done = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            # The first batch has traced the step, and later ones run the same program.
            if self._done:
                return
            self._done = True
            functions = list(compiled_functions(self.model.train_function))
            for concrete in (c for function in functions for c in traces(function)):
                compiled = compile_trace(concrete, batch_size, layer_names(self.model))
                program = compiled and compiled.program(capacity_bytes=capacity_bytes)
                if program and (
                    self.program is None or program.peak_bytes > self.program.peak_bytes
                ):
                    self.compiled, self.program = compiled, program
            if self.program is None:
                why = (
                    "the size of its batches is not fixed: call capture_fit(batch_size=...)"
                    if functions
                    else "fit does not compile it with XLA: "
                    "call model.compile(..., jit_compile=True)"
                )
                warnings.warn(
                    f"the program of {self.model.name!r} was not captured: {why}",
                    RecomputeWarning,
                    stacklevel=2,
                )

    return CaptureFit()
