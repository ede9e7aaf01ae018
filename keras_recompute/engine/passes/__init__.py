"""Passes: rewrites that make the saving of a program real under one compiler, and programs fast.

A pass changes the memory and time of a program, never what it computes, and each can be left out.
This is the list, in the order in which they run. Each file says what the pass does, for which
target, why it is needed, and where its worth is noted. Passes at the points ``policy``,
``backward`` and ``operation`` are pure: they make programs, or parts of one, of programs, and the
result is checked. The others work on the graph under construction. ``thresholds`` has the numbers
by which they decide. ``benchmarks/passes.py`` leaves out each in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

from ...backends import CPU, GPU, TPU, backend_now
from ...errors import InvalidArgumentError
from ...seams.tensorflow.xla import is_for_xla
from ..graph.opaque_values import opaque_copies
from ..graph.target import Pass, Target
from ..kernels.conv_grad_matmul import conv_grad_as_matmul
from ..kernels.convolutions import rewrite_convolution
from ..kernels.depthwise import rewrite_as_depthwise
from ..kernels.inlining import inline_compiled_calls
from ..kernels.normalization import fuse_normalization_gradient
from ..kernels.pooling import rewrite_pooling
from ..kernels.shared_kernels import share_slice_kernels
from .completion import token_of_whole_arrays
from .fence import (
    delay_with_barrier,
    delay_with_control_deps,
    fence_with_barrier,
    fence_with_cond,
    fence_with_control_deps,
)
from .hoisting import hoist_activation_grad
from .min_cut import min_cut_policy
from .prevent_constant_folding import runtime_broadcast, runtime_zeros
from .prevent_cse import duplicate_matmul_operands
from .scheduling import schedule_weight_gradients
from .sinking import sink_slice
from .staging import stage_recomputation
from .tracebacks import copy_traceback, share_tracebacks
from .unstacking import select_chain_slice

_XLA, _TENSORFLOW = "xla", "tensorflow"
_TENSORFLOW_CPU = f"{_TENSORFLOW} on {CPU}"
_XLA_CPU, _XLA_GPU, _XLA_TPU = f"{_XLA} on {CPU}", f"{_XLA} on {GPU}", f"{_XLA} on {TPU}"

# Files of benchmarks/notes.
_RESIDUALS, _CONVOLUTIONS, _POOLING, _ATTENTION = (
    "residuals.md",
    "convolutions.md",
    "pooling.md",
    "attention.md",
)
_PROCESS, _FIRST_STEP, _WORTH = "process_memory.md", "first_step.md", "passes.md"
_DEVICES, _PREDICTIONS, _UPDATES = "devices.md", "predictions.md", "updates.md"

PASSES = {
    each.name: each
    for each in (
        Pass("inlining", "traced", inline_compiled_calls, (_XLA,),
             "functions that XLA is to compile on their own are written out, so that the passes "
             "see what they compute",
             _CONVOLUTIONS),
        Pass("depthwise", "traced", rewrite_as_depthwise, (_TENSORFLOW_CPU,),
             "convolutions of as many groups as features by the kernels of depthwise ones, "
             "without XLA", _CONVOLUTIONS),
        Pass("normalization", "traced", fuse_normalization_gradient, (_TENSORFLOW_CPU,),
             "the gradient of batch normalisation by TensorFlow's kernel for it, without "
             "XLA", _CONVOLUTIONS),
        Pass("scheduling", "joined", schedule_weight_gradients, (_XLA,),
             "the gradients of a layer's weights are finished before back-propagation goes "
             "on", _RESIDUALS),
        Pass("min_cut", "policy", min_cut_policy, (_XLA, _TENSORFLOW),
             "where no policy is given, a smallest cut between products and residuals is "
             "kept", _RESIDUALS),
        Pass("hoisting", "prologue", hoist_activation_grad, (_XLA_CPU,),
             "the slope of a section's last activation is made before the branch, which would "
             "hold what that reads",
             _RESIDUALS),
        Pass("staging", "backward", stage_recomputation, (_XLA,),
             "cheap values of a replay are made again where the gradient reads them", _RESIDUALS),
        Pass("prevent_cse", "backward", duplicate_matmul_operands, (_XLA,),
             "operands of products are made apart from arithmetic on the same values, so that "
             "neither is kept", _RESIDUALS),
        Pass("convolutions", "operation", rewrite_convolution, (_XLA_CPU,),
             "convolutions in the layout of the fast kernel, which is taken in the entry only "
             "otherwise", _CONVOLUTIONS),
        Pass("conv_grad_matmul", "operation", conv_grad_as_matmul, (_TENSORFLOW_CPU,),
             "gradients of convolutions as products of matrices, where TensorFlow's own kernels "
             "for them are slow",
             _CONVOLUTIONS),
        Pass("pooling", "operation", rewrite_pooling, (_XLA_CPU,),
             "pooling as sums of slices, without arrays of whole numbers for its gradient",
             _POOLING),
        Pass("repeated_constants", "operation", runtime_broadcast, (_XLA,),
             "masks, which read no input, are made in the kernels that read them, and not once "
             "for each section", _PREDICTIONS),
        Pass("copied_tracebacks", "copied", copy_traceback, (_TENSORFLOW,),
             "an error in a copied operation shows the line of the original", _WORTH),
        Pass("fence", "fence", fence_with_cond, (_XLA_CPU, _XLA_TPU),
             "a replay starts when the incoming gradients are there: in a branch that XLA cannot "
             "decide", _WORTH),
        Pass("barrier", "fence", fence_with_barrier, (_XLA_GPU,),
             "a replay starts when the incoming gradients are there: behind a barrier, which is "
             "kept there", _DEVICES),
        Pass("control_dependencies", "fence", fence_with_control_deps, (_TENSORFLOW,),
             "a replay starts when the incoming gradients are there: it waits for them", _WORTH),
        Pass("completion", "completion", token_of_whole_arrays, (_XLA,),
             "with updates_in_backward a section waits for whole weights, not for one "
             "element", _UPDATES),
        Pass("delay", "delay", opaque_copies, (_XLA_CPU,),
             "a call does not begin with older values while the one before runs; what a recurrent "
             "layer's backward pass reads behind its loop is not made before it",
             _UPDATES),
        Pass("delay_by_control", "delay", delay_with_control_deps, (_TENSORFLOW,),
             "the same without XLA, where operations wait for others", _UPDATES),
        Pass("delay_by_barrier", "delay", delay_with_barrier, (_XLA_GPU,),
             "products of several calls that read one array are not joined into one", _UPDATES),
        Pass("prevent_constant_folding", "zeros", runtime_zeros, (_XLA,),
             "TensorFlow does not make large zeros before XLA compiles", _PROCESS),
        Pass("unstacking", "slice", select_chain_slice, (_XLA,),
             "a loop chooses among tensors instead of slicing a stack of them", _ATTENTION),
        Pass("shared_kernels", "stack_gradient", share_slice_kernels, (_XLA_CPU,),
             "what reads the gradient of one tensor of a stack is compiled once for all of "
             "them", _FIRST_STEP),
        Pass("sinking", "slice", sink_slice, (_XLA, _TENSORFLOW),
             "what a loop reads a piece of is selected inside its body, not kept whole around "
             "it", _WORTH),
        Pass("shared_tracebacks", "body", share_tracebacks, (_XLA,),
             "one traceback for all operations of a call, which TensorFlow writes out for "
             "XLA", _PROCESS),
    )
}  # fmt: skip

_left_out: ContextVar[frozenset[str]] = ContextVar("passes that are left out", default=frozenset())


def target_now() -> Target:
    """Return the target of the graph under construction.

    It is XLA if the graph is traced for ``jit_compile=True``. It is looked up where something
    begins, and passed on from there: a trace, a call that is written, its gradient (which may be
    asked for in another graph), and the key of a program (``trace_context``).
    """
    if is_for_xla(tf.compat.v1.get_default_graph()):
        return _target(_XLA, backend_now(), _left_out.get())
    return _target(_TENSORFLOW, backend_now(), _left_out.get())


@contextmanager
def leaving_out(*passes: str) -> Iterator[None]:
    """Trace and write without ``passes`` inside.

    Raises InvalidArgumentError for a name that no pass has.
    """
    unknown = sorted(set(passes) - PASSES.keys())
    if unknown:
        raise InvalidArgumentError(
            f"leaving_out: there is no pass {unknown[0]!r}; there are {', '.join(PASSES)}"
        )
    token = _left_out.set(frozenset(passes))
    try:
        yield
    finally:
        _left_out.reset(token)


@functools.cache
def _target(compiler: str, backend: str, left_out: frozenset[str]) -> Target:
    is_xla, names = compiler == _XLA, {compiler, f"{compiler} on {backend}"}
    passes = []
    for each in PASSES.values():
        if each.name not in left_out and names.intersection(each.on):
            passes.append(each)
    return Target(
        compiler,
        tuple(passes),
        knows_shapes=is_xla,
        updates_in_place=is_xla,
        has_one_memory=is_xla,
        holds_around_loops=is_xla and backend == CPU,
        updates_early=is_xla and backend != GPU,
        # GPUs and TPUs take more memory where copies wait (benchmarks/notes/updates.md).
        starts_early=is_xla and backend == CPU,
    )
