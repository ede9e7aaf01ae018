"""Compilation of a traced function by XLA, to read the program without running it.

``tf.function.experimental_get_compiler_ir(...)`` returns it in process. It serves for a function,
for the training step of a Keras model, and for what ``fit`` has traced. ``xla_reader`` makes the
record.
"""

from __future__ import annotations

import inspect
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

import numpy as np

from ..backends import tracing_for
from ..errors import InvalidArgumentError, RecomputeWarning
from ..keras_backend import require
from ..seams.tensorflow.concrete_functions import fresh_function, is_compiled, traces, xla_compiler
from .argument_specs import argument_specs, refuse_closed_specs
from .device_compilers import Device, compile_for
from .device_compilers.portable_module import make_portable
from .keras_step import (
    DATA_NAMES,
    compiled_functions,
    complete_shapes,
    is_model,
    layer_names,
    training_step,
)
from .local_device import LOCAL, device_named, run_and_measure, zeros_for_specs
from .parameters import Parameter, describe_inputs
from .program import Program
from .source_lines import source_lines
from .unrolled_loop import Mark
from .xla_reader import STAGE, UNOPTIMIZED, read_hlo_proto
from .xla_refusal import shorten_refusals


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program as XLA serializes it, with its inputs and layers; ``program`` reads it.

    Attributes:
        serialized: The bytes that XLA's own viewers read; ``report.write_report`` keeps them.
        parameters: What is known of the inputs.
        compile_seconds: How long compilation took.
        layers: Names of all layers of the model; empty if unknown.
        sources: Lines of the user's code by operation.
        compiled_by: Name and version of the compiler.
        capacity_bytes: Memory of the device that it was compiled for, if one was named.
        stated: Memory statistics of the compiler itself, in bytes by kind.
    """

    serialized: bytes = field(repr=False)
    parameters: tuple[Parameter, ...] = ()
    compile_seconds: float | None = None
    layers: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    compiled_by: str = "xla"
    capacity_bytes: int | None = None
    stated: Mapping[str, int] = field(default_factory=dict)

    def program(
        self, *, capacity_bytes: int | None = None, turns: Sequence[Collection[Mark]] = ()
    ) -> Program:
        """Return the record of the program.

        ``capacity_bytes`` is the memory of the device, by default of the one compiled for. With
        ``turns`` the trips of a loop are unrolled (see ``read_hlo_proto``). Raises ReportError if
        the program cannot be read.
        """
        return read_hlo_proto(
            self.serialized,
            parameters=self.parameters,
            layers=self.layers,
            sources=self.sources,
            capacity_bytes=self.capacity_bytes if capacity_bytes is None else capacity_bytes,
            compile_seconds=self.compile_seconds,
            compiled_by=self.compiled_by,
            stated=self.stated,
            turns=turns,
        )


def profile(
    fn: Callable[..., Any],
    *args: Any,
    input_feed: Sequence[int | str] | None = None,
    capacity_bytes: int | None = None,
    layers_of: Any = None,
    device: str | None = None,
    timeout_seconds: float = 600,
    **kwargs: Any,
) -> Program:
    """Compile ``fn(*args, **kwargs)`` with XLA and return its memory record, without running it.

    Compilation takes as long as in a first call. With ``device`` the function is traced and
    compiled for a GPU or TPU that need not be installed here, by that device's own compiler in a
    separate process. The result is cached on disk.

    Args:
        fn: A ``tf.function``, or a Python function to make one of. Its arguments follow;
            ``tf.TensorSpec`` may stand for a tensor. Or a compiled Keras model, followed by a batch
            as ``fit`` takes it, ``profile(model, x, y)``: then it is the training step on that
            batch, as ``fit`` runs it with ``jit_compile=True``; the model is built, not trained.
        input_feed: The arguments that hold the data of one execution, by name (``"x"``, all its
            tensors) or by the number of one tensor among the inputs. They count as
            ``input_feed_bytes`` and not in the peak. By default the batch of a model, and nothing
            for a function.
        capacity_bytes: Memory of the device; the record keeps it.
        layers_of: A Keras model that ``fn`` trains or calls. Operations in the scope of one of its
            layers are named after that layer, and no other scope is taken for a layer. By default
            ``fn`` itself if it is a model; else layers are guessed from the scopes of variables and
            operations.
        device: A name of ``devices()``, such as ``"h100"``; its memory is the capacity. By default
            what TensorFlow runs on. ``"local"`` is the device that is here, the first GPU or this
            machine: the program is compiled for it and run twice, on zeros where only specs are
            given. The record then also has the memory of the run, by the GPU's allocator or by the
            process. Variables keep their values.
        timeout_seconds: How long the compiler of ``device`` may take.

    Raises:
        InvalidArgumentError: ``input_feed`` names no data argument, or ``device`` no device.
        DeviceError: The compiler of ``device`` is not installed, refuses the program, or takes too
            long.
        DoesNotFitError: A TPU's compiler reports that the program needs more memory than there is.
        ReportError: The compiled program cannot be read.
        XlaUnsupportedError: XLA lacks an operation of the function; names the operation and the
            layer. Other errors of TensorFlow for functions that XLA cannot compile pass through.

    Examples:
        >>> def f(x):
        ...     return tf.reduce_sum(tf.sin(x) @ x)
        >>> program = kr.liveness.profile(f, tf.TensorSpec((64, 64)), input_feed=["x"])
        >>> program.input_feed_bytes
        16384
        >>> program.top_buffers(1)[0].size_bytes
        16384
    """
    request = _request(fn, args, kwargs, input_feed, layers_of, device)
    program = request.compile(timeout_seconds).program(capacity_bytes=capacity_bytes)
    if device != LOCAL:
        return program
    measured_bytes, measured_by = request.run(reserved_bytes=program.allocated_temporary_bytes or 0)
    return replace(program, measured_bytes=measured_bytes, measured_by=measured_by)


def compile_program(
    fn: Callable[..., Any],
    *args: Any,
    input_feed: Sequence[int | str] | None = None,
    layers_of: Any = None,
    device: str | None = None,
    timeout_seconds: float = 600,
    **kwargs: Any,
) -> CompiledProgram:
    """Compile ``fn(*args, **kwargs)`` as ``profile`` does and return the serialized program.

    Examples:
        >>> compiled = kr.liveness.compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> compiled.program().compiled_by
        'XLA of tensorflow ...'
        >>> program = kr.liveness.read_hlo_proto(compiled.serialized)  # the same, later
    """
    return _request(fn, args, kwargs, input_feed, layers_of, device).compile(timeout_seconds)


@dataclass(frozen=True)
class _Request:
    """A traced function to be compiled, with its compiler and what is known before compilation."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    concrete: Any
    specs: Sequence[Any] | None  # of its arguments; None where values are given
    target: Device | None
    known: CompiledProgram

    def compile(self, timeout_seconds: float) -> CompiledProgram:
        is_local = self.target is None or self.target.name == LOCAL
        with shorten_refusals(self.known.layers):
            if self.specs is None:
                compile_now = self.function.experimental_get_compiler_ir(*self.args, **self.kwargs)
            else:
                compile_now = xla_compiler(self.concrete, self.specs)
            start = time.perf_counter()
            # For another device TensorFlow only translates the trace; that device's compiler
            # optimizes it.
            data = compile_now(stage=STAGE if is_local else UNOPTIMIZED)
            seconds = time.perf_counter() - start
        if self.target is None or is_local:
            return replace(self.known, serialized=data, compile_seconds=seconds)
        made = compile_for(self.target, make_portable(data), timeout_seconds=timeout_seconds)
        return replace(
            self.known,
            serialized=made.serialized,
            compile_seconds=made.seconds,
            compiled_by=made.compiler,
            stated=made.statistics,
        )

    def run(self, *, reserved_bytes: int) -> tuple[int | None, str | None]:
        return run_and_measure(
            self.function,
            self.args,
            self.kwargs,
            self.concrete.variables,
            reserved_bytes=reserved_bytes,
        )


def _request(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    input_feed: Sequence[int | str] | None,
    layers_of: Any,
    device: str | None,
) -> _Request:
    require("liveness.profile")
    import tensorflow as tf

    target = None if device is None else device_named(device)
    if is_model(fn):
        args, kwargs = _batch(args, kwargs), {}
        layers_of = fn if layers_of is None else layers_of
        fn = tf.function(training_step(fn, args), jit_compile=True, autograph=False)
        # The batch is not part of the model's memory.
        input_feed = DATA_NAMES[: len(args)] if input_feed is None else input_feed
    function: Any = fn if is_compiled(fn) and target is None else fresh_function(fn)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()  # the compiler's door, unlike a call, does not fill them in
    args, kwargs = bound.args, bound.kwargs
    refuse_closed_specs(bound.arguments)
    leaves = tf.nest.flatten((args, kwargs))
    has_values = any(isinstance(leaf, (tf.Tensor, tf.Variable, np.ndarray)) for leaf in leaves)
    if has_values:
        # It takes either specs only or values only: a shape to be known must be a value.
        args, kwargs = zeros_for_specs((args, kwargs))
    with nullcontext() if target is None or target.name == LOCAL else tracing_for(target.backend):
        concrete = function.get_concrete_function(*args, **kwargs)
    known = CompiledProgram(
        b"",
        tuple(describe_inputs(concrete, input_feed or ())),
        layers=() if layers_of is None else layer_names(layers_of),
        sources=source_lines(concrete, _packages()),
        compiled_by=_compiler_here() + (f" for {target.title}" if target else ""),
        capacity_bytes=(target and target.memory_bytes) or None,
    )
    specs = None if has_values else argument_specs(concrete)
    return _Request(function, args, kwargs, concrete, specs, target, known)


def _compiler_here() -> str:
    import tensorflow as tf

    return f"XLA of tensorflow {tf.__version__}"


def _packages() -> tuple[str, ...]:
    """Return the folders of TensorFlow, Keras and this package."""
    import keras
    import tensorflow as tf

    folders = Path(tf.__file__).parent, Path(keras.__file__).parent, Path(__file__).parents[1]
    return tuple(f"{folder}{os.sep}" for folder in folders)


def batch_spec(leaf: Any) -> Any:
    """Return the type and shape of a part of a batch as ``fit`` passes it on.

    ``fit`` casts floats to Keras's own floating type.
    """
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.TensorSpec):
        return leaf
    tensor = (
        leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else tf.convert_to_tensor(leaf)
    )
    dtype = tf.as_dtype(tensor.dtype)
    if dtype.is_floating and not isinstance(leaf, tf.Tensor):
        dtype = tf.as_dtype(keras.config.floatx())
    return tf.TensorSpec(tensor.shape, dtype)


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return a batch as specs with the types that ``fit`` would pass on."""
    import tensorflow as tf

    unknown = kwargs.keys() - set(DATA_NAMES[len(args) :])
    if unknown:
        raise InvalidArgumentError(
            f"profile(model, x, y) got {sorted(unknown)}; a batch is {', '.join(DATA_NAMES)}"
        )
    data = [*args, *map(kwargs.get, DATA_NAMES[len(args) :])]
    return tuple(tf.nest.map_structure(batch_spec, part) for part in data if part is not None)


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


def compile_trace(
    concrete: Any, batch_size: int | None, layers: tuple[str, ...]
) -> CompiledProgram | None:
    """Compile a concrete function whose arguments are its input feed; None for unknown shapes."""
    import tensorflow as tf

    data = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    shapes = complete_shapes((tensor.shape for tensor in data), batch_size)
    if shapes is None:
        return None
    specs = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, data)]
    start = time.perf_counter()
    serialized = xla_compiler(concrete, specs)(stage=STAGE)
    seconds = time.perf_counter() - start
    parameters = describe_inputs(concrete, range(len(data)))
    return CompiledProgram(
        serialized,
        tuple(parameters),
        seconds,
        layers,
        source_lines(concrete, _packages()),
        compiled_by=_compiler_here(),
    )
