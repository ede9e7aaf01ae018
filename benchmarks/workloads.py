"""What the peers are given to do: the same numbers, the same weights, one training step of plain gradient descent.

A step computes the mean squared error, all gradients of the weights, and the new weights. Weights are NumPy arrays in
Keras's layout; each peer turns them into its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

RATE = 0.01  # of gradient descent


@dataclass(frozen=True)
class Workload:
    """One model and its sizes. ``checkpoints`` are the numbers of checkpoints at which peers are compared."""

    name: str
    kind: str  # "lstm", "gru", "transformer", "dense" or "residual"
    batch: int
    length: int  # timesteps, or tokens, or pixels along each side of an image
    features: int
    units: int  # of the recurrent layer, or of the hidden layer of a block
    checkpoints: tuple[int, ...]
    blocks: int = 0
    heads: int = 0

    @property
    def is_recurrent(self) -> bool:
        return self.kind in ("lstm", "gru")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the inputs."""
        inner = {"dense": (), "residual": (self.length, self.length)}.get(self.kind, (self.length,))
        return (self.batch, *inner, self.features)

    def sections(self, checkpoints: int) -> list[tuple[int, int]]:
        """Return (begin, end) of the equal sections, in timesteps or blocks."""
        count = self.length if self.is_recurrent else self.blocks
        size, rest = divmod(count, checkpoints + 1)
        if rest:
            raise ValueError(f"{count} cannot be split into {checkpoints + 1} equal sections")
        return [(i * size, (i + 1) * size) for i in range(checkpoints + 1)]

    def matrix_flops(self, checkpoints: int) -> int:
        """Return the multiplications and additions in the matrix products of one step.

        Forward, gradient of the weights, gradient of what is multiplied (the input of a recurrent model needs none), and
        with checkpoints the forward pass once more.
        """
        rows, replays = math.prod(self.shape[:-1]), 1 if checkpoints else 0
        if self.is_recurrent:
            gates = {"lstm": 4, "gru": 3}[self.kind] * self.units
            from_input, from_state = 2 * rows * self.features * gates, 2 * rows * self.units * gates
            return (2 + replays) * from_input + (3 + replays) * from_state
        if self.kind in ("dense", "residual"):
            product = 2 * rows * self.features**2 * (9 if self.kind == "residual" else 1)
            products = self.blocks * (2 if self.kind == "residual" else 1)
            return product * (products * (3 + replays) - 1)
        per_block = 2 * rows * (4 * self.features**2 + 2 * self.features * self.units + 2 * self.length * self.features)
        return self.blocks * per_block * (3 + replays)


_TRANSFORMER = Workload(
    "transformer", "transformer", batch=4, length=512, features=256, units=1024, blocks=12, heads=8, checkpoints=(0, 3, 11)
)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("lstm", "lstm", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)),
        Workload("gru", "gru", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)),
        Workload("wide-lstm", "lstm", batch=64, length=1024, features=512, units=512, checkpoints=(0, 7, 31)),
        _TRANSFORMER,
        replace(_TRANSFORMER, name="transformer-batch-8", batch=8),
        Workload("dense", "dense", batch=4096, length=1, features=1024, units=0, blocks=32, checkpoints=(0, 3, 7)),
        Workload("residual", "residual", batch=32, length=64, features=64, units=0, blocks=16, checkpoints=(0, 3, 7)),
        # small ones of each kind, to try the benchmark itself
        Workload("tiny-lstm", "lstm", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)),
        Workload("tiny-gru", "gru", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)),
        Workload(
            "tiny-transformer", "transformer", batch=2, length=6, features=8, units=12, checkpoints=(0, 1, 3), blocks=4, heads=2
        ),
        Workload("tiny-dense", "dense", batch=4, length=1, features=6, units=0, blocks=4, checkpoints=(0, 1, 3)),
        Workload("tiny-residual", "residual", batch=2, length=4, features=3, units=0, blocks=4, checkpoints=(0, 1, 3)),
    )
}
TINY = tuple(name for name in WORKLOADS if name.startswith("tiny-"))


def data(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets; these are numbers ``(batch, length, 1)`` for a recurrent model, else of the inputs' shape."""
    random = np.random.default_rng(1)
    targets = (*workload.shape[:2], 1) if workload.is_recurrent else workload.shape
    return random.standard_normal(workload.shape, np.float32), random.standard_normal(targets, np.float32)


def weights(workload: Workload) -> list[np.ndarray]:
    """Return the trainable weights in the order and layout in which Keras lists those of the model."""
    random = np.random.default_rng(2)

    def matrix(*shape: int, rows: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(rows)).astype(np.float32)

    width, units = workload.features, workload.units
    if workload.is_recurrent:
        gates = {"lstm": 4, "gru": 3}[workload.kind] * units
        bias = np.zeros((gates,) if workload.kind == "lstm" else (2, gates), np.float32)
        recurrent = [matrix(width, gates, rows=width), matrix(units, gates, rows=units), bias]
        return [*recurrent, matrix(units, 1, rows=units), np.zeros(1, np.float32)]
    if workload.kind == "dense":
        return [
            array for _ in range(workload.blocks) for array in (matrix(width, width, rows=width), np.zeros(width, np.float32))
        ]
    if workload.kind == "residual":
        scale = np.ones(width, np.float32), np.zeros(width, np.float32)
        return [a for _ in range(2 * workload.blocks) for a in (matrix(3, 3, width, width, rows=9 * width), *scale)]
    arrays, heads, size = [], workload.heads, width // workload.heads
    for _ in range(workload.blocks):
        arrays += [np.ones(width, np.float32), np.zeros(width, np.float32)]
        for _ in ("query", "key", "value"):
            arrays += [matrix(width, heads, size, rows=width), np.zeros((heads, size), np.float32)]
        arrays += [matrix(heads, size, width, rows=width), np.zeros(width, np.float32)]
        arrays += [np.ones(width, np.float32), np.zeros(width, np.float32)]
        arrays += [matrix(width, units, rows=width), np.zeros(units, np.float32)]
        arrays += [matrix(units, width, rows=units), np.zeros(width, np.float32)]
    return arrays


WEIGHTS_PER_BLOCK = {"transformer": 16, "dense": 2, "residual": 6}
