"""``tensorflow.python.ipu.gradient_accumulation``: the reduction of gradients."""

from __future__ import annotations

from ..pipeline.pipelining_options import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
