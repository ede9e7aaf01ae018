"""``ipu_tensorflow_addons.keras.optimizers``: Graphcore's additional optimisers."""

from __future__ import annotations

from ..optimizers.adam import AdamIpuOptimizer
from ..optimizers.base import IpuOptimizerBase
from ..optimizers.lamb import LAMBIpuOptimizer
from ..optimizers.sgd import SGDIpuOptimizer

__all__ = ["AdamIpuOptimizer", "IpuOptimizerBase", "LAMBIpuOptimizer", "SGDIpuOptimizer"]
