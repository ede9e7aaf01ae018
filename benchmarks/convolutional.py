"""ResNet-50 and MobileNetV2 as data, for the peers that have no ``keras.applications`` to take them
from.

Layers have the names that they have there, and weights are handed round by these names. Padding is
that of ``keras.applications`` too, for images with sides that are powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Convolution:
    """A convolution, batch normalisation and an activation: ``relu``, ``relu6``, or none."""

    name: str
    norm: str  # the name of the normalisation
    inputs: int
    filters: int
    size: int = 1
    stride: int = 1
    padding: tuple[int, int] = (0, 0)  # zeros before and after, along both sides of the image
    activation: str | None = "relu"
    is_depthwise: bool = False

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """As Keras has it: rows, columns, inputs, and filters or, of a depthwise convolution,
        filters per input.
        """
        return (self.size, self.size, self.inputs, 1 if self.is_depthwise else self.filters)


@dataclass(frozen=True)
class Block:
    """Convolutions one after the other.

    ``shortcut``, of convolutions or of none, is added to what they return.
    """

    result: str  # the name of the layer that returns the result
    path: tuple[Convolution, ...]
    shortcut: tuple[Convolution, ...] | None = None
    activation: str | None = None  # after the sum


@dataclass(frozen=True)
class Network:
    """A stem, blocks between which checkpoints may stand, a top, the mean over the image, and a
    dense layer.
    """

    stem: tuple[Block, ...]
    blocks: tuple[Block, ...]
    top: tuple[Block, ...]
    features: int  # given to the dense layer
    epsilon: float  # of batch normalisation
    pools: bool = False  # whether max pooling, 3 x 3 with stride 2, follows the stem
    has_bias: bool = False  # whether convolutions have one

    def convolutions(self) -> Iterator[Convolution]:
        """Yield all convolutions."""
        for block in (*self.stem, *self.blocks, *self.top):
            yield from block.path
            yield from block.shortcut or ()

    def added(self) -> list[Convolution]:
        """Return the convolutions whose results are added to a shortcut."""
        return [block.path[-1] for block in self.blocks if block.shortcut is not None]

    def places(self, side: int) -> Iterator[tuple[Convolution, int]]:
        """Yield each convolution with the side of the image that it returns, for images of ``side``
        pixels.
        """
        for block in (*self.stem, *self.blocks, *self.top):
            before = side
            for convolution in block.path:
                side //= convolution.stride
                yield convolution, side
            for convolution in block.shortcut or ():
                yield convolution, before // convolution.stride
            if self.pools and block is self.stem[-1]:
                side //= 2


def resnet50() -> Network:
    """Return the network of He et al.

    (2015), which halves the image in the first convolution of a stage.
    """
    blocks, inputs = [], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for number in range(1, count + 1):
            name, stride = f"conv{stage}_block{number}", 2 if number == 1 and stage > 2 else 1

            def convolution(part: int, *sizes: int, name: str = name, **options) -> Convolution:
                return Convolution(f"{name}_{part}_conv", f"{name}_{part}_bn", *sizes, **options)

            path = (
                convolution(1, inputs, width, stride=stride),
                convolution(2, width, width, size=3, padding=(1, 1)),
                convolution(3, width, 4 * width, activation=None),
            )
            projected = (convolution(0, inputs, 4 * width, stride=stride, activation=None),)
            blocks.append(Block(f"{name}_out", path, projected if number == 1 else (), "relu"))
            inputs = 4 * width
    stem = Convolution("conv1_conv", "conv1_bn", 3, 64, size=7, stride=2, padding=(3, 3))
    return Network(
        (Block("conv1_relu", (stem,)),),
        tuple(blocks),
        (),
        inputs,
        1.001e-5,
        pools=True,
        has_bias=True,
    )


def mobilenet_v2() -> Network:
    """Return the network of Sandler et al.

    (2018): its 16 blocks that expand, and the one that does not in the stem.
    """

    def depthwise(name: str, width: int, stride: int) -> Convolution:
        padding = (2 - stride, 1)  # of an even side that is halved, none before
        names = f"{name}_depthwise", f"{name}_depthwise_BN"
        return Convolution(*names, width, width, 3, stride, padding, "relu6", is_depthwise=True)

    def projection(name: str, inputs: int, width: int) -> Convolution:
        return Convolution(f"{name}_project", f"{name}_project_BN", inputs, width, activation=None)

    blocks, inputs = [], 16
    for width, count, first_stride in (
        (24, 2, 2),
        (32, 3, 2),
        (64, 4, 2),
        (96, 3, 1),
        (160, 3, 2),
        (320, 1, 1),
    ):
        for number in range(count):
            name, stride = f"block_{len(blocks) + 1}", 1 if number else first_stride
            expansion = Convolution(
                f"{name}_expand", f"{name}_expand_BN", inputs, 6 * inputs, activation="relu6"
            )
            path = (
                expansion,
                depthwise(name, 6 * inputs, stride),
                projection(name, 6 * inputs, width),
            )
            is_residual = stride == 1 and inputs == width
            blocks.append(
                Block(
                    f"{name}_add" if is_residual else path[-1].norm,
                    path,
                    () if is_residual else None,
                )
            )
            inputs = width
    stem = (
        Convolution("Conv1", "bn_Conv1", 3, 32, 3, 2, (0, 1), "relu6"),
        depthwise("expanded_conv", 32, 1),
        projection("expanded_conv", 32, 16),
    )
    top = Convolution("Conv_1", "Conv_1_bn", 320, 1280, activation="relu6")
    return Network(
        (Block("expanded_conv_project_BN", stem),),
        tuple(blocks),
        (Block("out_relu", (top,)),),
        1280,
        1e-3,
    )


NETWORKS = {
    "ResNet50": resnet50(),
    "MobileNetV2": mobilenet_v2(),
}  # by their names in keras.applications
