"""The window of a convolution: how its kernel moves over the image, for gradients too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tensorflow as tf

OF_IMAGES = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
OF_KERNELS = (
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
)
DEPTHWISE = "DepthwiseConv2dNative"


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image: everything per dimension of space."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # padding
    groups: int

    @property
    def is_pointwise(self) -> bool:
        """Whether every result follows from one place of the image alone."""
        return self.groups == 1 and set(self.kernel) == {1} and not any(self.before)

    @property
    def extents(self) -> list[int]:
        """The steps of the image that the kernel covers."""
        return covered(self.kernel, self.dilations)

    @property
    def spreads(self) -> list[int]:
        """The steps that the results cover with the strides between them."""
        return covered(self.result, self.strides)

    @property
    def around_results(self) -> list[tuple[int, int]]:
        """The padding around output gradients with which the kernel slides backwards."""
        around = []
        for n, m, e, p in zip(self.image, self.spreads, self.extents, self.before):
            low = e - 1 - p
            around.append((low, n - m - low + e - 1))
        return around

    @property
    def around_image(self) -> list[tuple[int, int]]:
        """The padding around the image with which the kernel slides over it.

        It is below zero behind what the kernel does not read.
        """
        sizes = zip(self.image, self.spreads, self.extents, self.before)
        return [(p, e - 1 + m - n - p) for n, m, e, p in sizes]


def covered(count: Iterable[int], apart: Iterable[int]) -> list[int]:
    """Return, per dimension, how many steps ``count`` places cover that are so far ``apart``."""
    return [(n - 1) * steps + 1 for n, steps in zip(count, apart)]


def same_padding(
    image: Iterable[int], result: Iterable[int], strides: Iterable[int], extents: Iterable[int]
) -> tuple[int, ...]:
    """Return the padding before an image, per dimension, of what is padded to the "same" size."""
    before = []
    for n, m, s, extent in zip(image, result, strides, extents):
        before.append(max(0, (m - 1) * s + extent - n) // 2)
    return tuple(before)


def is_channels_first(operation: tf.Operation) -> bool:
    """Return whether the channels of the operation's images come before space."""
    return operation.get_attr("data_format").startswith(b"NC")


def kernel_shape(operation: tf.Operation) -> tf.TensorShape:
    """Return the shape (space, in, out) of the kernel of a convolution or of its gradient."""
    return (operation.outputs[0] if operation.type in OF_KERNELS else operation.inputs[1]).shape


def window_of(operation: tf.Operation) -> Window | None:
    """Return the window of a convolution, or of the one whose gradient ``operation`` is.

    None where sizes are unknown.
    """
    is_image, is_kernel = operation.type in OF_IMAGES, operation.type in OF_KERNELS
    image = (operation.outputs if is_image else operation.inputs)[0].shape
    kernel = kernel_shape(operation)
    result = (operation.inputs[2] if is_image or is_kernel else operation.outputs[0]).shape
    rank = kernel.rank - 2 if kernel.rank is not None else 0
    if rank < 1 or not image.rank or not result.rank:
        return None
    if not all(shape.is_fully_defined() for shape in (image[1:], kernel, result[1:])):
        return None
    channels_first = is_channels_first(operation)
    space = slice(2, rank + 2) if channels_first else slice(1, rank + 1)
    features = image[1] if channels_first else image[-1]
    strides = tuple(operation.get_attr("strides")[space])
    dilations = tuple(operation.get_attr("dilations")[space])
    sizes = tuple(image[space]), tuple(kernel[:rank]), tuple(result[space])
    before = same_padding(sizes[0], sizes[2], strides, covered(sizes[1], dilations))
    padding = operation.get_attr("padding")
    if padding == b"VALID":
        before = (0,) * rank
    elif padding == b"EXPLICIT":
        before = tuple(
            operation.get_attr("explicit_paddings")[2 * space.start : 2 * space.stop : 2]
        )
    groups = features // kernel[rank] if not operation.type.startswith(DEPTHWISE) else features
    return Window(*sizes, strides, dilations, before, groups)
