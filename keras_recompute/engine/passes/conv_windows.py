"""The window of a convolution: how its kernel moves over the image, for gradients too."""

from __future__ import annotations

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
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]

    @property
    def spreads(self) -> list[int]:
        """The steps that the results cover with the strides between them."""
        return [(m - 1) * s + 1 for m, s in zip(self.result, self.strides)]

    @property
    def around_results(self) -> list[tuple[int, int]]:
        """The padding around output gradients with which the kernel slides backwards."""
        low = [extent - 1 - p for extent, p in zip(self.extents, self.before)]
        high = [
            n - m - p + e - 1 for n, m, p, e in zip(self.image, self.spreads, low, self.extents)
        ]
        return list(zip(low, high))

    @property
    def around_image(self) -> list[tuple[int, int]]:
        """The padding around the image with which the kernel slides over it.

        It is below zero behind what the kernel does not read.
        """
        sizes = zip(self.image, self.spreads, self.extents, self.before)
        return [(p, e - 1 + m - n - p) for n, m, e, p in sizes]


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
    strides, dilations = (
        tuple(operation.get_attr(name)[space]) for name in ("strides", "dilations")
    )
    sizes = tuple(image[space]), tuple(kernel[:rank]), tuple(result[space])
    extents = [(k - 1) * d + 1 for k, d in zip(sizes[1], dilations)]
    before = tuple(
        max(0, (m - 1) * s + extent - n) // 2
        for n, m, s, extent in zip(sizes[0], sizes[2], strides, extents)
    )
    padding = operation.get_attr("padding")
    if padding == b"VALID":
        before = (0,) * rank
    elif padding == b"EXPLICIT":
        before = tuple(
            operation.get_attr("explicit_paddings")[2 * space.start : 2 * space.stop : 2]
        )
    groups = features // kernel[rank] if not operation.type.startswith(DEPTHWISE) else features
    return Window(*sizes, strides, dilations, before, groups)
