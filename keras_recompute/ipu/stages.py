"""``tf.keras.ipu.PipelineStage``: which stage of the pipeline a call belongs to."""

from __future__ import annotations

from typing import Any

from keras.src.ops.node import Node

from .entered import current

_STAGE = "_pipeline_stage"


class PipelineStage:
    """Put the calls made in this context into pipeline stage number ``stage``.

    Raises ValueError for a negative stage, RuntimeError outside an IPUStrategy's scope and inside another stage.
    """

    _current: PipelineStage | None = None

    def __init__(self, stage: int) -> None:
        if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
            raise ValueError(f"a pipeline stage is a whole number from 0 on, not {stage!r}")
        self.stage = stage

    def __enter__(self) -> PipelineStage:
        if current() is None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is used outside a strategy: enter `with IPUStrategy().scope():` first"
            )
        if PipelineStage._current is not None:
            raise RuntimeError(
                f"PipelineStage({self.stage}) is used inside PipelineStage({PipelineStage._current.stage}): stages do not nest"
            )
        PipelineStage._current = self
        # Keras records each call as a Node; the stage is noted on those made from here to the end of the context.
        self._plain_init = plain_init = Node.__init__
        stage = self.stage

        def noting_init(node: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(node, *args, **kwargs)
            setattr(node, _STAGE, stage)

        Node.__init__ = noting_init
        return self

    def __exit__(self, *exception: object) -> None:
        Node.__init__ = self._plain_init
        PipelineStage._current = None


def stage_of(node: Any) -> int | None:
    """Return the pipeline stage that a Keras node was made in, or None."""
    return getattr(node, _STAGE, None)
