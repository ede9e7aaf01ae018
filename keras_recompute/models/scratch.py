"""What a layer takes of which its tensors say nothing, or too much: read from the layer's own compiled program.

XLA copies images and gradients to bring convolutions into another form, searches through arrays to find what pooling chose,
and so on. How much that takes depends on the kind, the shapes and the version of the compiler, and on whether the operations
stand in a section, where some are written otherwise (``engine.passes``). And of a layer with many operations inside the program
keeps fewer arrays than its trace has, where XLA fuses further than the trace shows. So both are asked, of the layer alone.
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
from ..layers.time_sections import recurrent_layers_in_sections
from ..liveness import Program, profile
from ..liveness.program import TEMPORARY, held_per_step
from ..phases import BACKWARD, FORWARD, RECOMPUTE

_TOLD_BY_THEIR_PROGRAM = (
    *CONVOLUTIONS, "AvgPool", "AvgPool3D", "GatherV2", "MaxPool", "MaxPool3D", "ResizeBilinear", "ResourceGather", "Softmax",
)  # fmt: skip


@dataclass(frozen=True)
class Scratch:
    """Bytes beside a layer's tensors while it and its gradient run, and bytes that its trace keeps and its program does not.

    Of each those in a section, and in a model without checkpoints.
    """

    section_bytes: int = 0
    plain_bytes: int = 0
    section_surplus_bytes: int = 0
    plain_surplus_bytes: int = 0


def scratch(
    function: Callable[..., Any],
    traced: Trace,
    signature: Sequence[tf.TensorSpec],
    *,
    kept_bytes: int,
    kept_in_section_bytes: int,
    is_cut: bool = False,
) -> Scratch:
    """Return what ``function`` of tensors like ``signature``, traced as ``traced``, takes beyond what its trace keeps.

    Where it ``is_cut`` along time, that trace is of a section, and of a model without checkpoints the program alone tells.
    """
    kinds = {op.type for op in traced.graph.get_operations()}
    if kinds.isdisjoint(_TOLD_BY_THEIR_PROGRAM) and not is_cut:
        return Scratch()
    differentiable = [n for n, spec in enumerate(signature) if spec.dtype.is_floating]
    outputs = [tf.TensorSpec(t.shape, t.dtype) for t in traced.outputs if t.dtype.is_floating]
    weights = [v for v in traced.variables if v.trainable]

    def compiled(called: Callable[..., Any]) -> Program:
        def step(*given: tf.Tensor) -> Any:
            arguments, gradients = given[: len(signature)], given[len(signature) :]
            with tf.GradientTape() as tape:
                tape.watch([arguments[n] for n in differentiable])
                results = [y for y in called(*arguments) if y.dtype.is_floating]
            return tape.gradient(results, [*(arguments[n] for n in differentiable), *weights], output_gradients=list(gradients))

        return profile(tf.function(step, jit_compile=True, autograph=False), *signature, *outputs)

    def section(*arguments: tf.Tensor) -> list[tf.Tensor]:
        return lower(partition(join(trace(function, signature, target_now())), save_nothing), list(arguments), name="scratch")

    with recurrent_layers_in_sections():
        in_section = compiled(section)
    plain = compiled(function)
    section_surplus_bytes = max(0, kept_in_section_bytes - _handed_on(in_section))
    plain_surplus_bytes = kept_bytes - _handed_on(plain)
    if not is_cut:
        plain_surplus_bytes = max(0, plain_surplus_bytes)
    return Scratch(
        section_bytes=max(0, _temporaries(in_section) - kept_in_section_bytes + section_surplus_bytes),
        plain_bytes=max(0, _temporaries(plain) - kept_bytes + plain_surplus_bytes),
        section_surplus_bytes=section_surplus_bytes,
        plain_surplus_bytes=plain_surplus_bytes,
    )


def _temporaries(record: Program) -> int:
    return max(held_per_step(record.buffers, (TEMPORARY,), record.program_steps))


def _handed_on(record: Program) -> int:
    """Return the bytes of what a forward pass, or its replay, makes and a backward pass reads."""
    made = (b for b in record.buffers if b.lifetime == TEMPORARY and b.phase in (FORWARD, RECOMPUTE))
    return sum(b.size_bytes for b in made if record.steps[b.last_step].phase == BACKWARD)
