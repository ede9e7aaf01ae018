"""Convolutions in the form in which XLA:CPU is fast inside branches and loops.

For XLA:CPU. It has a fast kernel for convolutions whose image is (batch, space, features) and whose
kernel is (space, in, out). It brings others into that form in the entry computation only.
TensorFlow writes gradients in other forms. In a branch, where sections are, each becomes plain
loops, 40 to 280 times slower. So this pass writes them in the fast form, with the same numbers to
the bit. Where a kernel covers one place of the image, both gradients are products of matrices,
which need no image transposed.

A depthwise convolution, also one of as many groups as features, is the opposite case. It takes so
few products per element that plain loops are 10 to 50 times faster than the kernel, which is made
for many. It is written in another form, which the kernel does not take.

Other compilers keep their own forms. What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...seams.tensorflow.protos import ConvolutionDimensionNumbers
from ...seams.tensorflow.xla import xla_conv_v2, xla_pad
from ..graph.opaque_values import materialize, opaque_copies
from .conv_windows import (
    DEPTHWISE,
    OF_IMAGES,
    OF_KERNELS,
    Window,
    is_channels_first,
    kernel_shape,
    window_of,
)

_FORWARD = ("Conv2D", "Conv3D")


def rewrite_convolution(operation: tf.Operation) -> Callable[..., tf.Tensor] | None:
    """Return the function of its inputs that replaces ``operation``; None where it stays."""
    if operation.type not in _MAKE:
        return None
    window = window_of(operation)
    if window is None:
        return None
    kernel, rank, channels_first = (
        kernel_shape(operation),
        len(window.image),
        is_channels_first(operation),
    )
    is_depthwise = window.groups > 1 and kernel[rank] == 1 and operation.type in _AS_DEPTHWISE
    has_fast_form = operation.type in _FORWARD and not channels_first and not is_depthwise
    if has_fast_form and not _is_flipped_by_xla(window):
        return None
    make = functools.partial((_AS_DEPTHWISE if is_depthwise else _MAKE)[operation.type], window)
    return functools.partial(_channels_last, make, operation.type, rank) if channels_first else make


def _channels_last(
    make: Callable[..., tf.Tensor], kind: str, rank: int, *inputs: tf.Tensor
) -> tf.Tensor:
    """Run ``make`` on images whose channels come before space."""
    to_last, to_first = [0, *range(2, rank + 2), 1], [0, rank + 1, *range(1, rank + 1)]
    is_image = (
        kind not in OF_IMAGES,
        False,
        True,
    )  # an operation's inputs are image, kernel, gradient, or sizes of these
    made = make(*(tf.transpose(t, to_last) if there else t for t, there in zip(inputs, is_image)))
    return made if kind in OF_KERNELS else tf.transpose(made, to_first)


def _is_flipped_by_xla(window: Window) -> bool:
    """Whether XLA slides the image over the kernel, which is the larger of the two, and flipped."""
    return math.prod(window.kernel) > math.prod(window.image)


def _forward(window: Window, image: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    if _is_flipped_by_xla(window):
        # Flipped when the image is there. XLA would flip all kernels at the program's start.
        (kernel,) = opaque_copies([kernel], after=[image])
    image, padding = _as_far_as_it_is_read(window, image)
    return _convolution(
        image,
        kernel,
        window.strides,
        padding,
        (1,) * len(window.image),
        window.dilations,
        window.groups,
    )


def _image_gradient(window: Window, _: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Slide the kernel backwards over the output gradients, which are ``strides`` apart."""
    if window.is_pointwise:
        return _pointwise_image_gradient(window, kernel, dy)
    rank, groups = len(window.image), window.groups
    inputs, outputs = kernel.shape[rank], kernel.shape[rank + 1] // groups
    # A flipped kernel follows from the weights alone. XLA would flip all at the program's start.
    (kernel,) = opaque_copies([kernel], after=[dy])
    kernel = tf.reshape(
        tf.reverse(kernel, list(range(rank))), [*window.kernel, inputs, groups, outputs]
    )
    kernel = tf.transpose(kernel, [*range(rank), rank + 2, rank + 1, rank])
    kernel = tf.reshape(kernel, [*window.kernel, outputs, groups * inputs])
    return _convolution(
        dy, kernel, (1,) * rank, window.around_results, window.strides, window.dilations, groups
    )


def _kernel_gradient(window: Window, image: tf.Tensor, _: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Slide the output gradients, ``strides`` apart, over the image; sum over the batch."""
    if window.is_pointwise:
        return _pointwise_kernel_gradient(window, image, dy)
    rank, groups = len(window.image), window.groups
    # Transposed when it is needed: XLA would do that as soon as the image is there.
    (image,) = opaque_copies([image], after=[dy])
    image, padding = _as_far_as_it_is_read(window, image)
    sizes, space = image.shape[1 : rank + 1], range(1, rank + 1)
    features = image.shape[-1] // groups
    image = tf.transpose(
        tf.reshape(image, [-1, *sizes, groups, features]), [rank + 2, *space, rank + 1, 0]
    )
    image = tf.reshape(image, [features, *sizes, -1])
    gradient = tf.transpose(dy, [*space, 0, rank + 1])
    found = _convolution(
        image, gradient, window.dilations, padding, (1,) * rank, window.strides, groups
    )
    # Transposed now: XLA would do that at the end of the program, and hold both arrays until then.
    return materialize(found, permutation=(*space, 0, rank + 1))


def _pointwise_image_gradient(window: Window, kernel: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    inputs, outputs = kernel.shape[-2:]
    found = tf.matmul(
        tf.reshape(dy, [-1, outputs]), tf.reshape(kernel, [inputs, outputs]), transpose_b=True
    )
    found = tf.reshape(found, [-1, *window.result, inputs])
    if window.image == window.result:
        return found
    behind = [n - spread for n, spread in zip(window.image, window.spreads)]
    between = [stride - 1 for stride in window.strides]
    nothing = tf.zeros([], found.dtype)
    dilated = xla_pad(found, nothing, [0] * found.shape.rank, [0, *behind, 0], [0, *between, 0])
    dilated.set_shape([dy.shape[0], *window.image, inputs])
    return dilated


def _pointwise_kernel_gradient(window: Window, image: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    inputs, outputs = image.shape[-1], dy.shape[-1]
    if window.image != window.result:
        read = (slice(0, spread, stride) for spread, stride in zip(window.spreads, window.strides))
        image = image[(slice(None), *read)]
    found = tf.matmul(
        tf.reshape(image, [-1, inputs]), tf.reshape(dy, [-1, outputs]), transpose_a=True
    )
    return tf.reshape(found, [*window.kernel, inputs, outputs])


def _depthwise(window: Window, image: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    image, padding = _as_far_as_it_is_read(window, image)
    kernel = tf.reshape(kernel, [1, *window.kernel, -1])
    ones = (1,) * len(window.image)
    return _convolution(
        image,
        kernel,
        window.strides,
        padding,
        ones,
        window.dilations,
        window.groups,
        kernel_first=True,
    )


def _depthwise_image_gradient(
    window: Window, _: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    rank = len(window.image)
    # Several results of each feature.
    if kernel.shape[-1] != window.groups:
        return _image_gradient(window, _, kernel, dy)
    kernel = tf.reshape(tf.reverse(kernel, list(range(rank))), [1, *window.kernel, -1])
    return _convolution(
        dy,
        kernel,
        (1,) * rank,
        window.around_results,
        window.strides,
        window.dilations,
        window.groups,
        kernel_first=True,
    )


def _depthwise_kernel_gradient(
    window: Window, image: tf.Tensor, sizes: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    rank = len(window.image)
    image, padding = _as_far_as_it_is_read(window, image)
    shape, space = image.shape[1 : rank + 1], range(1, rank + 1)
    image = tf.reshape(tf.transpose(image, [*space, rank + 1, 0]), [1, *shape, -1])
    ones = (1,) * rank
    found = _convolution(
        image, dy, window.dilations, padding, ones, window.strides, window.groups, kernel_first=True
    )
    return tf.reshape(found, sizes)


_MAKE: dict[str, Callable[..., tf.Tensor]] = {
    **dict.fromkeys(_FORWARD, _forward),
    **dict.fromkeys(OF_IMAGES, _image_gradient),
    **dict.fromkeys(OF_KERNELS, _kernel_gradient),
    DEPTHWISE: _depthwise,
    f"{DEPTHWISE}BackpropFilter": _depthwise_kernel_gradient,
}


# Those of as many groups as features: the kernel has one input.
_AS_DEPTHWISE: dict[str, Callable[..., tf.Tensor]] = {
    **dict.fromkeys(_FORWARD, _depthwise),
    **dict.fromkeys(OF_IMAGES, _depthwise_image_gradient),
    **dict.fromkeys(OF_KERNELS, _depthwise_kernel_gradient),
}


def _as_far_as_it_is_read(
    window: Window, image: tf.Tensor
) -> tuple[tf.Tensor, list[tuple[int, int]]]:
    """Return ``image`` as far as the kernel reads it, and the padding around it."""
    return _cropped(image, window.around_image)


def _cropped(
    image: tf.Tensor, padding: Sequence[tuple[int, int]]
) -> tuple[tf.Tensor, list[tuple[int, int]]]:
    """Return ``image`` without what a negative padding cuts off, and the padding that is left."""
    if any(after < 0 for _, after in padding):
        ends = [n + min(0, after) for n, (_, after) in zip(image.shape[1:], padding)]
        image = image[(slice(None), *(slice(0, end) for end in ends))]
    return image, [(before, max(0, after)) for before, after in padding]


def _convolution(
    image: tf.Tensor,
    kernel: tf.Tensor,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    image_dilations: Sequence[int],
    kernel_dilations: Sequence[int],
    groups: int,
    *,
    kernel_first: bool = False,
) -> tf.Tensor:
    """Convolve ``image`` (batch, space, features) with ``kernel``.

    The kernel is (space, in, out), or (in, space, out) with ``kernel_first``.
    """
    made = xla_conv_v2(
        image,
        kernel,
        window_strides=tf.constant(strides),
        padding=tf.constant(padding),
        lhs_dilation=tf.constant(image_dilations),
        rhs_dilation=tf.constant(kernel_dilations),
        feature_group_count=tf.constant(groups),
        dimension_numbers=_dimensions(len(strides), kernel_first),
        precision_config="",
        preferred_element_type=image.dtype,
        batch_group_count=1,
    )
    space = kernel.shape[1:-1] if kernel_first else kernel.shape[:-2]
    sizes = [
        (before + (n - 1) * d + 1 + after - ((k - 1) * e + 1)) // s + 1
        for n, k, s, (before, after), d, e in zip(
            image.shape[1:], space, strides, padding, image_dilations, kernel_dilations
        )
    ]
    made.set_shape([image.shape[0], *sizes, kernel.shape[-1]])
    return made


@functools.cache
def _dimensions(rank: int, kernel_first: bool) -> bytes:
    numbers: Any = ConvolutionDimensionNumbers(
        input_feature_dimension=rank + 1, output_feature_dimension=rank + 1
    )
    numbers.input_spatial_dimensions.extend(range(1, rank + 1))
    numbers.output_spatial_dimensions.extend(range(1, rank + 1))
    numbers.kernel_input_feature_dimension = 0 if kernel_first else rank
    numbers.kernel_output_feature_dimension = rank + 1
    numbers.kernel_spatial_dimensions.extend(range(1, rank + 1) if kernel_first else range(rank))
    return bytes(numbers.SerializeToString())
