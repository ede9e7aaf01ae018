"""Warnings about checkpoints of a model that save no memory.

What a section saves is known once it is traced. So a training step that is traced anyway says it,
and nothing is compiled or run for it. It does not say whether the peak of the whole step falls;
``step_peak`` measures that on a sample.
"""

from __future__ import annotations

from ..engine.diagnostics import saves_memory
from ..engine.partition import Partition, partition
from ..engine.passes import target_now
from ..engine.policies import save_everything
from ..engine.source_location import warn_user
from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from .execution import ExecutionPlan
from .partition_cache import PartitionCache


def warn_without_savings(model_name: str, plan: ExecutionPlan, traced: PartitionCache) -> bool:
    """Warn where no section of ``plan`` saves memory; return whether it was found out.

    ``traced`` has the partitions of a step. Under XLA nothing is said: its passes order the
    gradients of the weights too, which saves memory without a replay.
    """
    sections = traced.recomputed()
    if target_now().is_xla or not any(map(_trains, sections)):
        return False
    if traced.is_cut_in_time or any(map(_saves, sections)):
        return True
    layers = sum(not isinstance(c.operation, RecomputationCheckpoint) for c in plan.graph.calls)
    # About the root of the number of layers takes the least memory (Chen et al. 2016, 4.1).
    spacing = max(2, round(layers**0.5))
    warn_user(
        f"the checkpoints of {model_name!r} save no memory: its gradients read only the values "
        f"that pass between sections, which are kept anyway. Of its {layers} layers, put a "
        f"checkpoint after about every {spacing}, or train the plain model. checkpointed(..., "
        "sample=batch) compares the two"
    )
    return True


def _trains(part: Partition) -> bool:
    first_variable = len(part.joint.trace.arguments)
    asked = set(part.joint.produced) - set(part.joint.gradient_unused)
    return any(port >= first_variable for port in asked)


def _saves(part: Partition) -> bool:
    # An output that is kept anyway is kept by the plain gradient as well.
    return saves_memory(
        part, partition(part.joint, save_everything, kept_by_caller=part.kept_by_caller)
    )
