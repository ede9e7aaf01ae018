"""``tf.keras.ipu.PipelineStage``: the pipeline stage of a layer or of a call of one."""

from __future__ import annotations

from typing import Any

from ...seams.keras.construction import observe_construction
from ..configuration.current_strategy import current_strategy

# The stages of a model's calls in running order. A nested model with stages inside has a tuple of
# them. None: they were not set, and calls and layers have their own.
Stages = tuple[Any, ...] | None

_STAGE = "_pipeline_stage"


class PipelineStage:
    """A context that assigns the layers and calls made in it to pipeline stage ``stage``.

    A call's own stage takes precedence over its layer's. Raises ValueError for a negative stage,
    RuntimeError outside an IPUStrategy's scope and inside another stage.
    """

    _current: PipelineStage | None = None
    times_entered = 0

    def __init__(self, stage: int) -> None:
        if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
            raise ValueError(f"a pipeline stage is a whole number from 0 on, not {stage!r}")
        self.stage = stage

    def __enter__(self) -> PipelineStage:
        if current_strategy() is None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is used outside a strategy: enter `with "
                "IPUStrategy().scope():` first"
            )
        if PipelineStage._current is not None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is used inside "
                f"PipelineStage({PipelineStage._current.stage}): stages do not nest"
            )
        PipelineStage._current = self
        PipelineStage.times_entered += 1
        self._noting = observe_construction(lambda made: assign_stage(made, self.stage))
        self._noting.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._noting.__exit__(None, None, None)
        PipelineStage._current = None


def assign_stage(made: Any, stage: int | None) -> None:
    """Assign a Keras node or operation to ``stage``, or to none."""
    # Keras must not track it.
    object.__setattr__(made, _STAGE, stage)


def assigned_stage(made: Any) -> int | None:
    """Return the stage that a Keras node or operation was assigned to itself, or None."""
    return getattr(made, _STAGE, None)


def stage_of(node: Any) -> int | None:
    """Return the pipeline stage of a call, given its Keras node.

    It is the call's own, else its layer's, else None.
    """
    own = assigned_stage(node)
    return own if own is not None else assigned_stage(node.operation)
