"""Warnings about checkpoints of a model that save no memory.

What a section saves is known once it is traced. So a training step that is traced anyway says it,
and nothing is compiled or run for it. Whether the peak of the whole step falls is estimated, and
said where weights leave nothing to save; ``step_peak`` measures it on a sample.
"""

from __future__ import annotations

import keras

from ...engine import Partition, saves_memory, target_now
from ...engine.policies import save_everything
from ...keras_backend.update_reasons import reason_of_optimizer
from ...sizes import format_bytes
from ...user_code import warn_user
from .array_sizes import bytes_of_variables
from .executor import ExecutionPlan
from .partition_cache import PartitionCache
from .saving_estimate import estimate_saving, handed_on_bytes
from .spacing_advice import (
    layer_of_blocks,
    warn_of_blocks,
    warn_of_frozen_sections,
    warn_of_spacing,
)
from .weights_advice import INSTEAD, NEXT_TO_NOTHING, SPOKEN_OF, never_saved, optimizer_state

# Savings below 2 % are within the error of the estimate. XLA's passes save memory without a replay
# too. So with XLA it is only said where the activations are NEXT_TO_NOTHING beside the weights.
_NO_LESS = 0.98
# Of the weights: where sections hand on more, there is something to save.
_FEW = 0.5


def warn_without_savings(model: keras.Model, plan: ExecutionPlan, traced: PartitionCache) -> bool:
    """Warn where the sections of ``plan`` save no memory; return whether it was found out.

    ``traced`` has the partitions of a training step of ``model``.
    """
    sections = traced.recomputed()
    if not sections:
        # The plan recomputes sections, but no gradient passes through any of them.
        warn_of_frozen_sections(model)
        return True
    if not any(map(_trains, sections)):
        return False
    if traced.is_cut_in_time:
        return True
    # With XLA the engine's passes save memory inside such a layer too.
    if not target_now().is_xla and (layer := layer_of_blocks(plan.graph.calls)):
        warn_of_blocks(model, layer)
        return True
    # Under XLA passes order the gradients of the weights too, which saves without a replay.
    if target_now().is_xla or any(map(_saves, sections)):
        _warn_of_weights(model, traced)
        return True
    warn_of_spacing(model, plan.graph.calls)
    return True


def _warn_of_weights(model: keras.Model, traced: PartitionCache) -> None:
    """Warn where weights, and what training keeps of their size, leave nothing to save."""
    # Keras makes what the optimizer keeps behind the first forward pass.
    state = optimizer_state(model)
    steps = traced.traced()
    weight_bytes = bytes_of_variables(model.variables)
    passed_on = handed_on_bytes(steps)
    if passed_on is None or passed_on > _FEW * weight_bytes:
        return
    reason = reason_of_optimizer(getattr(model, "optimizer", None))
    gradients_wait = target_now().is_xla or reason is not None
    found = estimate_saving(steps, [*model.variables, *state], gradients_wait=gradients_wait)
    if found is None or found.plain_peak_bytes < SPOKEN_OF:
        return
    if target_now().is_xla:
        saves = found.kept_bytes > NEXT_TO_NOTHING * found.fixed_bytes
    else:
        saves = found.peak_bytes < _NO_LESS * found.plain_peak_bytes
    if saves:
        return
    warn_user(
        f"the checkpoints of {model.name!r} save next to nothing: a training step is estimated to "
        f"take {format_bytes(found.peak_bytes)} with them and "
        f"{format_bytes(found.plain_peak_bytes)} without, and {format_bytes(found.fixed_bytes)} of "
        f"it are {never_saved(state)}. {INSTEAD}"
    )


def _trains(part: Partition) -> bool:
    first_variable = len(part.joint.trace.arguments)
    requested = set(part.joint.produced) - set(part.joint.gradient_unused)
    return any(port >= first_variable for port in requested)


def _saves(part: Partition) -> bool:
    # An output that is kept anyway is kept by the plain gradient as well.
    return saves_memory(part, part.under(save_everything))
