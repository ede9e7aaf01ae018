"""Storage that a layer takes while it runs, and of which its tensors say nothing: read from the layer's own compiled program.

XLA copies images and gradients to bring convolutions into another form, searches through arrays to find what pooling chose,
and so on. How much that takes depends on the kind, the shapes and the version of the compiler, and on whether the operations
stand in a section, where some are written otherwise (``engine.passes``). So it is asked, of the layer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..engine.joint import join
from ..engine.kinds import CONVOLUTIONS
from ..engine.lower import lower
from ..engine.partition import partition
from ..engine.passes import target_now
from ..engine.policies import save_nothing
from ..engine.trace import Trace, trace
from ..liveness import Program, profile
from ..liveness.program import TEMPORARY, held_per_step

_TOLD_BY_THEIR_PROGRAM = (
    *CONVOLUTIONS, "AvgPool", "AvgPool3D", "GatherV2", "MaxPool", "MaxPool3D", "ResizeBilinear", "ResourceGather", "Softmax",
)  # fmt: skip


@dataclass(frozen=True)
class Scratch:
    """Bytes beside a layer's tensors while it and its gradient run: in a section, and in a model without checkpoints."""

    section_bytes: int = 0
    plain_bytes: int = 0


def scratch(
    function: Callable[..., Any],
    traced: Trace,
    signature: Sequence[tf.TensorSpec],
    *,
    kept_bytes: int,
    kept_in_section_bytes: int,
) -> Scratch:
    """Return what ``function`` of tensors like ``signature``, traced as ``traced``, takes beyond what it keeps."""
    kinds = {op.type for op in traced.graph.get_operations()}
    if kinds.isdisjoint(_TOLD_BY_THEIR_PROGRAM):
        return Scratch()
    differentiable = [n for n, spec in enumerate(signature) if spec.dtype.is_floating]
    outputs = [tf.TensorSpec(t.shape, t.dtype) for t in traced.outputs if t.dtype.is_floating]
    weights = [v for v in traced.variables if v.trainable]

    def temporary_bytes(called: Callable[..., Any]) -> int:
        def step(*given: tf.Tensor) -> Any:
            arguments, gradients = given[: len(signature)], given[len(signature) :]
            with tf.GradientTape() as tape:
                tape.watch([arguments[n] for n in differentiable])
                results = [y for y in called(*arguments) if y.dtype.is_floating]
            return tape.gradient(results, [*(arguments[n] for n in differentiable), *weights], output_gradients=list(gradients))

        record = profile(tf.function(step, jit_compile=True, autograph=False), *signature, *outputs)
        return _temporaries(record)

    def section(*arguments: tf.Tensor) -> list[tf.Tensor]:
        return lower(partition(join(trace(function, signature, target_now())), save_nothing), list(arguments), name="scratch")

    return Scratch(
        section_bytes=max(0, temporary_bytes(section) - kept_in_section_bytes),
        plain_bytes=max(0, temporary_bytes(function) - kept_bytes),
    )


def _temporaries(record: Program) -> int:
    return max(held_per_step(record.buffers, (TEMPORARY,), record.program_steps))
