"""Functions of JAX, and the training step of a Keras model on it, compiled by XLA.

JAX gives a compiled program without the trace of the allocator. So XLA is asked to write the
program into a temporary folder, by its options ``xla_dump_to`` and ``xla_dump_hlo_as_proto``.
"""

from __future__ import annotations

import glob
import inspect
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from ..backends import CPU, GPU, tracing_for
from ..errors import DeviceError, InvalidArgumentError, UnsupportedError
from ..seams.jax.flash_attention import described_gpu
from ..seams.keras.cudnn import without_cudnn
from ..user_code import warn_user
from .categories import INPUT, WEIGHT
from .compiled_program import CompiledProgram, TracedFunction, batch_of
from .device_compilers import Device, compile_for
from .jax_runs import run_and_measure
from .jax_shardings import share_bytes
from .jax_training_step import TrainingStep, training_step
from .keras_step import DATA_NAMES, is_model, layer_names
from .local_device import LOCAL
from .parameters import Parameter, mark_fed

# What JAX calls the platforms of described devices when it lowers a function for them.
_PLATFORMS = {GPU: "cuda"}
_NO_CAPABILITY = (0, 0)  # less than any GPU has, so that JAX takes no kernels of a GPU
_STATISTICS = ("temp", "argument", "output", "alias", "generated_code")


def trace_function(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    input_feed: Sequence[int | str] | None,
    layers_of: Any,
    target: Device | None,
) -> TracedFunction:
    """Trace ``fn`` for ``target``; arguments as ``profile``'s.

    ``fn`` may be a model, whose training step it is then, or a ``TrainingStep``.
    """
    is_local = target is None or target.name == LOCAL
    if target is not None and is_local and keras.distribution.distribution() is not None:
        raise UnsupportedError(
            "device='local' runs the step on one device, and a keras.distribution divides it among "
            "several: leave out device=, or set no distribution"
        )
    described: list[Parameter] = []
    if is_model(fn):
        layers_of = fn if layers_of is None else layers_of
        fn = training_step(fn, jax.tree.map(batch_spec, batch_of(args, kwargs)))
    if isinstance(fn, TrainingStep):
        described = list(fn.parameters)
        # The batch is not part of the model's memory.
        input_feed = DATA_NAMES[: len(fn.data)] if input_feed is None else input_feed
        fn, args, kwargs = fn.function, (fn.state, fn.data), {}
    # An unused argument would be left out of the program, and its description with it.
    function = fn if hasattr(fn, "trace") else jax.jit(fn, keep_unused=True)
    args, kwargs = jax.tree.map(_spec, (args, kwargs))
    with nullcontext() if target is None or is_local else _described(target):
        traced = function.trace(*args, **kwargs)
        platforms = None if target is None or is_local else (_platform(target),)
        lowered = traced.lower(lowering_platforms=platforms)
    described = described or _describe_arguments(fn, args, kwargs, lowered.args_info)
    mark_fed(described, input_feed or ())
    known = CompiledProgram(
        b"",
        tuple(described),
        layers=() if layers_of is None else layer_names(layers_of),
        compiled_by=f"XLA of jax {jax.__version__}" + (f" for {target.title}" if target else ""),
        capacity_bytes=(target and target.memory_bytes) or None,
    )
    return _Traced(lowered, (args, kwargs), None if is_local else target, known)


@contextmanager
def _described(target: Device) -> Iterator[None]:
    """Trace for ``target`` inside the context.

    A program for several devices has plain attention: cuDNN's is divided among them by Python code
    of JAX, which the compiler's process does not have.
    """
    is_divided = keras.distribution.distribution() is not None
    capability = None if is_divided else target.capability
    flash_attention = described_gpu(capability or _NO_CAPABILITY)
    left_out = _note_loop_for_cudnn if target.backend == GPU else lambda: None
    with tracing_for(target.backend), flash_attention, without_cudnn(left_out):
        yield


def _note_loop_for_cudnn() -> None:
    warn_user(
        "keras.layers.LSTM runs on cuDNN on a GPU, and JAX compiles that on a GPU alone: the "
        "figures are those of Keras's own loop. Give it use_cudnn=False to train what was "
        "compiled, or take kr.LSTM"
    )


@dataclass(frozen=True)
class _Traced:
    """A lowered function of JAX, with the device and what is known before it is compiled."""

    lowered: Any
    specs: tuple[tuple[Any, ...], dict[str, Any]]
    target: Device | None
    known: CompiledProgram

    def compile(self, timeout_seconds: float) -> CompiledProgram:
        if self.target is not None:
            # With the names of operations, by which the record finds layers and phases.
            module = self.lowered.as_text(debug_info=True).encode()
            made = compile_for(
                self.target, module, timeout_seconds=timeout_seconds, is_stablehlo=True
            )
            return replace(
                self.known,
                serialized=made.serialized,
                compile_seconds=made.seconds,
                compiled_by=made.compiler,
                stated=made.statistics,
            )
        with tempfile.TemporaryDirectory() as folder, _without_compilation_cache():
            options: dict[str, Any] = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
            if jax.default_backend() == CPU:
                # LLVM begins once all buffers are assigned, and its optimisations take half of
                # the time. For a GPU they stay: XLA times kernels to choose among them.
                options["xla_backend_optimization_level"] = 0
            start = time.perf_counter()
            compiled = self.lowered.compile(compiler_options=options)
            seconds = time.perf_counter() - start
            programs = glob.glob(os.path.join(folder, "*after_optimizations.hlo.pb"))
            if len(programs) != 1:
                raise DeviceError(
                    f"XLA wrote {len(programs)} programs to {folder} instead of one: its disk may "
                    "be full, or XLA_FLAGS may leave out the program by xla_dump_hlo_module_re"
                )
            with open(programs[0], "rb") as file:
                serialized = file.read()
        statistics = compiled.memory_analysis()
        stated = {}
        for name in _STATISTICS:
            stated[name] = int(getattr(statistics, f"{name}_size_in_bytes"))
        return replace(self.known, serialized=serialized, compile_seconds=seconds, stated=stated)

    def run(self, *, reserved_bytes: int) -> tuple[int | None, str | None]:
        compiled = self.lowered.compile()  # without the folder that slows it down
        return run_and_measure(compiled, self.specs, reserved_bytes=reserved_bytes)


@contextmanager
def _without_compilation_cache() -> Iterator[None]:
    """Turn JAX's cache off in the block: a program from it is written without its buffers."""
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    compilation_cache.reset_cache()  # which looks at the option once
    try:
        yield
    finally:
        jax.config.update(name, before)
        compilation_cache.reset_cache()


def batch_spec(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the type and shape of a part of a batch as ``fit`` passes it on.

    ``fit`` casts floats of other libraries to Keras's own floating type.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(leaf.dtype)))
    is_given = isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, keras.KerasTensor))
    if jax.numpy.issubdtype(dtype, jax.numpy.floating) and not is_given:
        dtype = np.dtype(keras.config.floatx())
    return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype)


def _spec(leaf: Any) -> Any:
    """Return type and shape of an array, and anything else, such as a number, as it is."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    if any(size is None for size in leaf.shape):
        raise InvalidArgumentError(
            f"an argument has the shape {tuple(leaf.shape)}: a program is compiled for one size, "
            "so give an array or a jax.ShapeDtypeStruct without None"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct) or jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.extended
    ):
        return leaf
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(dtype))


def _platform(target: Device) -> str:
    return _PLATFORMS.get(target.backend, target.backend)


def _describe_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], info: Any
) -> list[Parameter]:
    """Return a description of each array among the arguments, called by its place in Python.

    An argument that is donated is overwritten by the program, as weights are.
    """
    names = list(inspect.signature(fn).bind(*args, **kwargs).arguments)[: len(args)]
    info_args, info_kwargs = info
    # JAX leaves static arguments out.
    if len(info_args) != len(args):
        names = [f"argument_{number}" for number in range(len(info_args))]
    # Arrays that are divided among devices have other sizes in the program of one.
    is_divided = any(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((args, kwargs)))
    described = []
    for name, each in [*zip(names, info_args), *info_kwargs.items()]:
        for path, leaf in jax.tree_util.tree_leaves_with_path(each):
            category = WEIGHT if leaf.donated else INPUT
            called = f"{name}{jax.tree_util.keystr(path)}"
            size_bytes = None if is_divided else share_bytes(leaf)
            described.append(Parameter(called, category, size_bytes=size_bytes))
    return described
