"""``tensorflow.python.ipu.gradient_accumulation``."""

from __future__ import annotations

from ..pipeline.pipelining_options import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
