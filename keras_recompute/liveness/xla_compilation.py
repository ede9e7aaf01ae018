"""Compilation of a function by XLA, to read its program without running it.

It serves for a function, and for the training step of a Keras model. The module of Keras's backend
traces and compiles; ``xla_reader`` makes the record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

from ..keras_backend import JAX, TORCH, current_backend, require
from .compiled_program import TIMEOUT_SECONDS, CompiledProgram, TracedFunction
from .local_device import LOCAL, device_named
from .program import Program


def profile(
    fn: Callable[..., Any],
    *args: Any,
    input_feed: Sequence[int | str] | None = None,
    capacity_bytes: int | None = None,
    layers_of: Any = None,
    device: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    **kwargs: Any,
) -> Program:
    """Compile ``fn(*args, **kwargs)`` with XLA and return its memory record, without running it.

    Compilation takes as long as in a first call, or half of that on JAX on a CPU, where machine
    code that does not run is not optimised. With ``device`` the function is traced and compiled for
    a GPU or TPU that need not be installed here, by that device's own compiler in a separate
    process. The result is cached on disk. Keras's PyTorch backend has no XLA: there the function
    runs once on tensors without values, and every storage is recorded.

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
    require("liveness.profile")
    if current_backend() == TORCH:
        from .torch_functions import profile as profile_on_torch

        return profile_on_torch(
            fn,
            args,
            kwargs,
            input_feed=input_feed,
            capacity_bytes=capacity_bytes,
            layers_of=layers_of,
            device=device,
        )
    traced = _traced(fn, args, kwargs, input_feed, layers_of, device)
    program = traced.compile(timeout_seconds).program(capacity_bytes=capacity_bytes)
    if device != LOCAL:
        return program
    measured_bytes, measured_by = traced.run(reserved_bytes=program.allocated_temporary_bytes or 0)
    return replace(program, measured_bytes=measured_bytes, measured_by=measured_by)


def compile_program(
    fn: Any,
    *args: Any,
    input_feed: Sequence[int | str] | None = None,
    layers_of: Any = None,
    device: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    **kwargs: Any,
) -> CompiledProgram:
    """Compile ``fn(*args, **kwargs)`` as ``profile`` does and return the serialized program.

    Examples:
        >>> compiled = kr.liveness.compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> compiled.program().compiled_by
        'XLA of tensorflow ...'
        >>> program = kr.liveness.read_hlo_proto(compiled.serialized)  # the same, later
    """
    require("liveness.compile_program")
    return _traced(fn, args, kwargs, input_feed, layers_of, device).compile(timeout_seconds)


def _traced(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    input_feed: Sequence[int | str] | None,
    layers_of: Any,
    device: str | None,
) -> TracedFunction:
    if current_backend() == JAX:
        from .jax_functions import trace_function
    else:
        from .tensorflow_functions import trace_function

    target = None if device is None else device_named(device)
    return trace_function(
        fn, args, kwargs, input_feed=input_feed, layers_of=layers_of, target=target
    )
