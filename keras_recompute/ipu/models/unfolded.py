"""The memory of a pipeline over all that runs, as Poplar's liveness report shows it: ramp-up, turns and ramp-down in a row."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgumentError
from ...liveness import CompiledProgram, Program
from ...op_names import BACKWARD, FORWARD
from ..pipeline.model_stages import Task


def unfolded(model: Any, compiled: CompiledProgram, *, capacity_bytes: int | None = None) -> Program:
    """Return the record of ``compiled``, the training program of the pipelined ``model``, with the turns of its loop in a row.

    Each turn has the steps of the stages that run in it, and holds what the compiled program holds at these steps. The bodies
    of all other loops count once. Raises InvalidArgumentError where ``model`` is no pipeline of which a program was traced, and
    ReportError where ``compiled`` is another program.
    """
    pipeline = model.pipeline
    if pipeline is None or Task.TRAIN not in pipeline.loops:
        raise InvalidArgumentError(
            f"{model.name!r} is no pipeline that was compiled for training: there are no turns to unfold"
        )
    loop = pipeline.loops[Task.TRAIN]
    turns = [
        {(BACKWARD if action.is_backward else FORWARD, f"stage-{action.stage}") for action in turn}
        for turn in loop.schedule.run_in_turns(loop.microbatches)
    ]
    return compiled.program(capacity_bytes=capacity_bytes, turns=turns)
