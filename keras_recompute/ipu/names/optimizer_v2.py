"""``keras.optimizer_v2`` and its modules: Keras 2's places of the optimisers.

The optimisers are Keras's own.
"""

from __future__ import annotations

from keras.optimizers import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, Nadam, Optimizer, RMSprop
from keras.optimizers.schedules import (
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    LearningRateSchedule,
    PiecewiseConstantDecay,
    PolynomialDecay,
)

OptimizerV2 = Optimizer

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "Ftrl",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "Nadam",
    "Optimizer",
    "OptimizerV2",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "RMSprop",
]
