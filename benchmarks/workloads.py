"""What the peers are given to do: the same numbers, the same weights, one training step of plain
gradient descent.

A step computes the mean squared error, all gradients of the weights, and the new weights. Weights
are NumPy arrays in Keras's layout; each peer turns them into its own.

A model is a recurrent layer, a stack of equal blocks, such a stack behind patches of images (a
vision transformer), or a network of ``keras.applications``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from convolutional import NETWORKS, Network

RATE = 0.01  # of gradient descent


ATTEND = ("transformer", "decoder", "vit")  # kinds whose blocks are a transformer's
CONVOLVE = ("residual", *NETWORKS)
WEIGHTS_PER_BLOCK = {**dict.fromkeys(ATTEND, 16), "dense": 2, "residual": 6}
WEIGHTS_BEFORE_BLOCKS = {"vit": 2}  # 4 follow them


@dataclass(frozen=True)
class Workload:
    """One model and its sizes.

    ``checkpoints`` are the numbers of checkpoints at which peers are compared.
    """

    name: str
    # "lstm", "gru", "transformer", "decoder", "vit", "dense", "residual", or one of
    # keras.applications
    kind: str
    batch: int
    length: int  # timesteps, or tokens, or pixels along each side of an image
    # of each timestep, token or pixel between blocks; images with classes have 3
    features: int
    units: int  # of the recurrent layer, or of the hidden layer of a block
    checkpoints: tuple[int, ...]
    blocks: int = 0
    heads: int = 0
    patch: int = 0  # pixels along each side of what becomes a token
    classes: int = 0  # numbers that are returned for an image

    @property
    def is_recurrent(self) -> bool:
        return self.kind in ("lstm", "gru")

    @property
    def network(self) -> Network | None:
        """The network, where it is one of keras.applications."""
        return NETWORKS.get(self.kind)

    @property
    def tiny(self) -> str:
        """The name of a tiny workload that uses the same parts of a framework."""
        return "tiny-residual" if self.network else f"tiny-{self.kind}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the inputs."""
        if self.classes:
            return (self.batch, self.length, self.length, 3)
        inner = {"dense": (), "residual": (self.length, self.length)}.get(self.kind, (self.length,))
        return (self.batch, *inner, self.features)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of what a block of a stack is given and returns."""
        return (
            (self.batch, (self.length // self.patch) ** 2, self.features)
            if self.patch
            else self.shape
        )

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of what the model returns."""
        if self.is_recurrent:
            return (*self.shape[:2], 1)
        return (self.batch, self.classes) if self.classes else self.shape

    def sections(self, checkpoints: int) -> list[tuple[int, int]]:
        """Return (begin, end) of the equal sections, in timesteps or blocks."""
        count = self.length if self.is_recurrent else self.blocks
        size, rest = divmod(count, checkpoints + 1)
        if rest:
            raise ValueError(f"{count} cannot be split into {checkpoints + 1} equal sections")
        return [(i * size, (i + 1) * size) for i in range(checkpoints + 1)]

    def matrix_flops(self, checkpoints: int) -> int:
        """Return the multiplications and additions in the matrix products and convolutions of one
        step.

        Forward, gradient of the weights, gradient of what is multiplied (the input of a model needs
        none, unless it is a stack's of attention), and with checkpoints the forward pass once more.
        Of causal attention the half that is needed.
        """
        rows, replays = math.prod(self.block_shape[:-1]), 1 if checkpoints else 0
        if self.is_recurrent:
            gates = {"lstm": 4, "gru": 3}[self.kind] * self.units
            from_input, from_state = 2 * rows * self.features * gates, 2 * rows * self.units * gates
            return (2 + replays) * from_input + (3 + replays) * from_state
        if self.network:
            dense = 2 * self.batch * self.network.features * self.classes
            first, *others = (
                2 * self.batch * side**2 * math.prod(convolution.kernel_shape)
                for convolution, side in self.network.places(self.length)
            )
            return (2 + replays) * first + (3 + replays) * (sum(others) + dense)
        if self.kind in ("dense", "residual"):
            product = 2 * rows * self.features**2 * (9 if self.kind == "residual" else 1)
            products = self.blocks * (2 if self.kind == "residual" else 1)
            return product * (products * (3 + replays) - 1)
        attended = self.block_shape[1] // (2 if self.kind == "decoder" else 1)
        per_block = (
            2
            * rows
            * (4 * self.features**2 + 2 * self.features * self.units + 2 * attended * self.features)
        )
        from_patches = 2 * rows * 3 * self.patch**2 * self.features
        dense = 2 * self.batch * self.features * self.classes
        return (2 + replays) * from_patches + (3 + replays) * (self.blocks * per_block + dense)


_TRANSFORMER = Workload(
    "transformer",
    "transformer",
    batch=4,
    length=512,
    features=256,
    units=1024,
    blocks=12,
    heads=8,
    checkpoints=(0, 3, 11),
)
_VIT = Workload(  # ViT-S/16
    "vit",
    "vit",
    batch=8,
    length=224,
    features=384,
    units=1536,
    blocks=12,
    heads=6,
    patch=16,
    classes=1000,
    checkpoints=(0, 3),
)
_IMAGES = {
    "length": 64,
    "features": 0,
    "units": 0,
    "blocks": 16,
    "classes": 1000,
    "checkpoints": (0, 3),
}
_TINY_TRANSFORMER = Workload(
    "tiny-transformer",
    "transformer",
    batch=2,
    length=6,
    features=8,
    units=12,
    checkpoints=(0, 1, 3),
    blocks=4,
    heads=2,
)
_TINY_IMAGES = {**_IMAGES, "batch": 8, "length": 32, "classes": 10}
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "lstm", "lstm", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)
        ),
        Workload(
            "gru", "gru", batch=16, length=2048, features=512, units=256, checkpoints=(0, 7, 31)
        ),
        Workload(
            "wide-lstm",
            "lstm",
            batch=64,
            length=1024,
            features=512,
            units=512,
            checkpoints=(0, 7, 31),
        ),
        _TRANSFORMER,
        replace(_TRANSFORMER, name="transformer-batch-8", batch=8),
        replace(_TRANSFORMER, name="decoder", kind="decoder", batch=2, length=1024),
        _VIT,
        Workload("resnet50", "ResNet50", batch=16, **_IMAGES),
        Workload("mobilenet-v2", "MobileNetV2", batch=32, **_IMAGES),
        Workload(
            "dense",
            "dense",
            batch=4096,
            length=1,
            features=1024,
            units=0,
            blocks=32,
            checkpoints=(0, 3, 7),
        ),
        Workload(
            "residual",
            "residual",
            batch=32,
            length=64,
            features=64,
            units=0,
            blocks=16,
            checkpoints=(0, 3, 7),
        ),
        # small ones of each kind, to try the benchmark itself
        Workload(
            "tiny-lstm", "lstm", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)
        ),
        Workload("tiny-gru", "gru", batch=2, length=32, features=5, units=4, checkpoints=(0, 1, 3)),
        _TINY_TRANSFORMER,
        replace(_TINY_TRANSFORMER, name="tiny-decoder", kind="decoder"),
        replace(_TINY_TRANSFORMER, name="tiny-vit", kind="vit", length=12, patch=4, classes=3),
        Workload(
            "tiny-dense",
            "dense",
            batch=4,
            length=1,
            features=6,
            units=0,
            blocks=4,
            checkpoints=(0, 1, 3),
        ),
        Workload(
            "tiny-residual",
            "residual",
            batch=2,
            length=4,
            features=3,
            units=0,
            blocks=4,
            checkpoints=(0, 1, 3),
        ),
        Workload("tiny-resnet50", "ResNet50", **_TINY_IMAGES),
        Workload("tiny-mobilenet-v2", "MobileNetV2", **_TINY_IMAGES),
    )
}
TINY = tuple(name for name in WORKLOADS if name.startswith("tiny-"))


def data(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets."""
    random = np.random.default_rng(1)
    return random.standard_normal(workload.shape, np.float32), random.standard_normal(
        workload.target_shape, np.float32
    )


def weights(workload: Workload) -> list[np.ndarray]:
    """Return the trainable weights in the order and layout of those of the Keras model."""
    matrix, width, units = _matrices(), workload.features, workload.units
    if workload.is_recurrent:
        gates = {"lstm": 4, "gru": 3}[workload.kind] * units
        bias = np.zeros((gates,) if workload.kind == "lstm" else (2, gates), np.float32)
        recurrent = [matrix(width, gates, rows=width), matrix(units, gates, rows=units), bias]
        return [*recurrent, matrix(units, 1, rows=units), np.zeros(1, np.float32)]
    if workload.kind == "dense":
        return [
            array
            for _ in range(workload.blocks)
            for array in (matrix(width, width, rows=width), np.zeros(width, np.float32))
        ]
    scale = np.ones(width, np.float32), np.zeros(width, np.float32)
    if workload.kind == "residual":
        return [
            a
            for _ in range(2 * workload.blocks)
            for a in (matrix(3, 3, width, width, rows=9 * width), *scale)
        ]
    arrays, heads, size = [], workload.heads, width // workload.heads
    if workload.patch:
        arrays += [matrix(workload.patch, workload.patch, 3, width, rows=3 * workload.patch**2)]
        arrays += [matrix(*workload.block_shape[1:], rows=1)]
    for _ in range(workload.blocks):
        arrays += scale
        for _ in ("query", "key", "value"):
            arrays += [matrix(width, heads, size, rows=width), np.zeros((heads, size), np.float32)]
        arrays += [matrix(heads, size, width, rows=width), np.zeros(width, np.float32)]
        arrays += scale
        arrays += [matrix(width, units, rows=width), np.zeros(units, np.float32)]
        arrays += [matrix(units, width, rows=units), np.zeros(width, np.float32)]
    if workload.patch:
        arrays += [
            *scale,
            matrix(width, workload.classes, rows=width),
            np.zeros(workload.classes, np.float32),
        ]
    return arrays


def named_weights(workload: Workload) -> dict[str, np.ndarray]:
    """Return the trainable weights of a network of keras.applications by the paths that Keras gives
    them.
    """
    matrix, network = _matrices(), workload.network
    arrays = {}
    for convolution in network.convolutions():
        shape, filters = convolution.kernel_shape, convolution.filters
        arrays[f"{convolution.name}/kernel"] = matrix(
            *shape, rows=math.prod(shape) // shape[2 if convolution.is_depthwise else 3]
        )
        if network.has_bias:
            arrays[f"{convolution.name}/bias"] = np.zeros(filters, np.float32)
        # Blocks that add little to their shortcuts, so that rounding does not grow from block to
        # block (He et al. 2019, "Bag of tricks", begin with 0, which would leave a block's own
        # gradients 0).
        scale = 0.2 if convolution in network.added() else 1.0
        arrays[f"{convolution.norm}/gamma"] = np.full(filters, scale, np.float32)
        arrays[f"{convolution.norm}/beta"] = np.zeros(filters, np.float32)
    arrays["predictions/kernel"] = matrix(network.features, workload.classes, rows=network.features)
    arrays["predictions/bias"] = np.zeros(workload.classes, np.float32)
    return arrays


def _matrices() -> Callable[..., np.ndarray]:
    """Return what draws weights, each element with a variance of one over ``rows``."""
    random = np.random.default_rng(2)

    def matrix(*shape: int, rows: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(rows)).astype(np.float32)

    return matrix
