"""What the peers are given to do: the same numbers, the same weights, one training step of plain gradient descent.

A step computes the mean squared error, all gradients of the weights, and the new weights. Weights are NumPy arrays in
Keras's layout; each peer turns them into its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RATE = 0.01  # of gradient descent


@dataclass(frozen=True)
class Workload:
    """One model and its sizes. ``checkpoints`` are the numbers of checkpoints at which peers are compared."""

    name: str
    kind: str  # "lstm", "gru" or "transformer"
    batch: int
    length: int  # timesteps, or tokens
    features: int
    units: int  # of the recurrent layer, or of the hidden layer of a block
    checkpoints: tuple[int, ...]
    blocks: int = 0
    heads: int = 0

    @property
    def is_recurrent(self) -> bool:
        return self.kind != "transformer"

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
        rows, replays = self.batch * self.length, 1 if checkpoints else 0
        if self.is_recurrent:
            gates = {"lstm": 4, "gru": 3}[self.kind] * self.units
            from_input, from_state = 2 * rows * self.features * gates, 2 * rows * self.units * gates
            return (2 + replays) * from_input + (3 + replays) * from_state
        per_block = 2 * rows * (4 * self.features**2 + 2 * self.features * self.units + 2 * self.length * self.features)
        return self.blocks * per_block * (3 + replays)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("lstm", "lstm", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)),
        Workload("gru", "gru", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)),
        Workload("wide-lstm", "lstm", batch=64, length=1024, features=512, units=512, checkpoints=(0, 7, 31)),
        Workload(
            "transformer",
            "transformer",
            batch=4,
            length=512,
            features=256,
            units=1024,
            blocks=12,
            heads=8,
            checkpoints=(0, 3, 11),
        ),
        # small ones of each kind, to try the benchmark itself
        Workload("tiny-lstm", "lstm", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)),
        Workload("tiny-gru", "gru", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)),
        Workload(
            "tiny-transformer", "transformer", batch=2, length=6, features=8, units=12, checkpoints=(0, 1, 3), blocks=4, heads=2
        ),
    )
}
TINY = tuple(name for name in WORKLOADS if name.startswith("tiny-"))


def data(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs ``(batch, length, features)`` and targets ``(batch, length, 1)`` or, for a transformer, as the inputs."""
    random = np.random.default_rng(1)
    shape = workload.batch, workload.length, workload.features
    targets = (*shape[:2], 1) if workload.is_recurrent else shape
    return random.standard_normal(shape, np.float32), random.standard_normal(targets, np.float32)


def weights(workload: Workload) -> list[np.ndarray]:
    """Return the weights in the order and layout in which Keras lists those of the model."""
    random = np.random.default_rng(2)

    def matrix(*shape: int, rows: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(rows)).astype(np.float32)

    width, units = workload.features, workload.units
    if workload.is_recurrent:
        gates = {"lstm": 4, "gru": 3}[workload.kind] * units
        bias = np.zeros((gates,) if workload.kind == "lstm" else (2, gates), np.float32)
        recurrent = [matrix(width, gates, rows=width), matrix(units, gates, rows=units), bias]
        return [*recurrent, matrix(units, 1, rows=units), np.zeros(1, np.float32)]
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


WEIGHTS_PER_BLOCK = 16
