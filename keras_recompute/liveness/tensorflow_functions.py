"""Functions of TensorFlow, and the training step of a Keras model on it, compiled by XLA.

``tf.function.experimental_get_compiler_ir(...)`` returns the compiled program in process.
"""

from __future__ import annotations

import inspect
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Sequence

import numpy as np

from ..backends import tracing_for
from ..errors import InvalidArgumentError
from ..seams.keras.variables import only_compiling
from ..seams.tensorflow.concrete_functions import fresh_function, is_compiled, xla_compiler
from .abstract_models import as_abstract_as
from .argument_specs import argument_specs, refuse_closed_specs
from .compiled_program import TIMEOUT_SECONDS, CompiledProgram, TracedFunction, batch_of
from .device_compilers import Device, compile_for
from .device_compilers.portable_module import make_portable
from .keras_step import DATA_NAMES, complete_shapes, is_model, layer_names, training_step
from .local_device import LOCAL, device_named, run_and_measure, zeros_for_specs
from .parameters import describe_inputs
from .program import Program
from .source_lines import source_lines
from .xla_reader import STAGE, UNOPTIMIZED
from .xla_refusal import shorten_refusals


def trace_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    input_feed: Sequence[int | str] | None,
    layers_of: Any,
    target: Device | None,
    with_lines: bool = True,
) -> TracedFunction:
    """Trace ``fn``, or the training step of a model, for ``target``; arguments as ``profile``'s.

    Without ``with_lines`` the record names no lines of the user's code, which saves a tenth of the
    time of a plan.
    """
    import tensorflow as tf

    if is_model(fn):
        parts = batch_of(args, kwargs)
        args, kwargs = tuple(tf.nest.map_structure(batch_spec, part) for part in parts), {}
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
    traced_for: ContextManager[None] = nullcontext()
    if target is not None and target.name != LOCAL:
        traced_for = tracing_for(target.backend)
    # A train_step of the class's own may create the optimizer's variables.
    created = nullcontext() if layers_of is None else as_abstract_as(layers_of)
    with traced_for, created, only_compiling():
        concrete = function.get_concrete_function(*args, **kwargs)
    known = CompiledProgram(
        b"",
        tuple(describe_inputs(concrete, input_feed or ())),
        layers=() if layers_of is None else layer_names(layers_of),
        sources=source_lines(concrete) if with_lines else {},
        compiled_by=_compiler_here() + (f" for {target.title}" if target else ""),
        capacity_bytes=(target and target.memory_bytes) or None,
    )
    specs = None if has_values else argument_specs(concrete)
    return _Traced(function, args, kwargs, concrete, specs, target, known)


def compile_step(
    step: Callable[..., Any],
    specs: Sequence[Any],
    *,
    input_feed: Sequence[int] = (),
    layers_of: Any = None,
    device: str | None = None,
) -> Program:
    """Return the record of ``step``, compiled for ``specs``, without lines of the user's code."""
    import tensorflow as tf

    traced = trace_function(
        tf.function(step, jit_compile=True, autograph=False),
        tuple(specs),
        {},
        input_feed=input_feed,
        layers_of=layers_of,
        target=None if device is None else device_named(device),
        with_lines=False,
    )
    return traced.compile(TIMEOUT_SECONDS).program()


@dataclass(frozen=True)
class _Traced:
    """A traced ``tf.function``, with the device and what is known before it is compiled."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    concrete: Any
    specs: Sequence[Any] | None  # of its arguments; None where values are given
    target: Device | None
    known: CompiledProgram

    def compile(self, timeout_seconds: float) -> CompiledProgram:
        is_local = self.target is None or self.target.name == LOCAL
        with shorten_refusals(self.known.layers), _values_lent(self.concrete):
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


def _values_lent(concrete: Any) -> ContextManager[Any]:
    """Return a context in which all variables that ``concrete`` reads have values."""
    from ..seams.tensorflow.valueless_variables import lend_values

    try:
        return lend_values(concrete)
    except MemoryError as error:
        raise InvalidArgumentError(
            f"the largest weight needs more memory than this machine has ({error}), and TensorFlow "
            "compiles no such model without values of its weights: set KERAS_BACKEND=jax"
        ) from error


def _compiler_here() -> str:
    import tensorflow as tf

    return f"XLA of tensorflow {tf.__version__}"


def batch_spec(leaf: Any, batch_size: int | None = None) -> Any:
    """Return the type and shape of a part of a batch as ``fit`` passes it on.

    ``fit`` casts floats to Keras's own floating type. ``batch_size`` replaces the first size.
    """
    import keras
    import tensorflow as tf

    if not isinstance(leaf, tf.TensorSpec):
        is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        tensor = leaf if is_array else tf.convert_to_tensor(leaf)
        dtype = tf.as_dtype(tensor.dtype)
        if dtype.is_floating and not isinstance(leaf, tf.Tensor):
            dtype = tf.as_dtype(keras.config.floatx())
        leaf = tf.TensorSpec(tensor.shape, dtype)
    if batch_size and leaf.shape.rank:
        leaf = tf.TensorSpec([batch_size, *leaf.shape[1:]], leaf.dtype)
    return leaf


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
        source_lines(concrete),
        compiled_by=_compiler_here(),
    )
