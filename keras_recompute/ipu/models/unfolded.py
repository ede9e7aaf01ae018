"""The memory of a pipeline over time, with the turns of its loop in sequence.

Poplar's liveness report shows a pipeline this way: ramp-up, turns, ramp-down.
"""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgumentError
from ...liveness import CompiledProgram, Program
from ...op_names import BACKWARD, FORWARD
from ..pipeline.model_stages import Task


def unfolded(
    model: Any, compiled: CompiledProgram, *, capacity_bytes: int | None = None
) -> Program:
    """Return the record of ``compiled`` with the turns of the pipeline's loop in sequence.

    ``compiled`` is the training program of ``model``. Each turn has the steps of the stages that
    run in it, with the bytes that the compiled program holds at these steps. The bodies of all
    other loops count once.

    Raises:
        InvalidArgumentError: If ``model`` is no pipeline, or has not been traced.
        ReportError: If ``compiled`` is another program.
    """
    pipeline = model.pipeline
    if pipeline is None or Task.TRAIN not in pipeline.loops:
        raise InvalidArgumentError(
            f"{model.name!r} is not a pipeline that was compiled for training, so it has no loop "
            "to unroll"
        )
    loop = pipeline.loops[Task.TRAIN]
    turns = []
    for turn in loop.schedule.run_in_turns(loop.microbatches):
        marks = set()
        for action in turn:
            phase = BACKWARD if action.is_backward else FORWARD
            marks.add((phase, f"stage-{action.stage}"))
        turns.append(marks)
    return compiled.program(capacity_bytes=capacity_bytes, turns=turns)
