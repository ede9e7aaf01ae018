"""Gradients of convolutions as matrix products, where TensorFlow's own kernels are slow.

For TensorFlow without XLA, on a CPU. Without oneDNN, as on processors without instructions for
neural networks, it makes the gradient of an image by one product per image of the batch, with as
many rows as that has results. With four rows, at the end of a network, it reads the kernel once for
each image, and is fifty times slower than a product of matrices. Here

* a kernel that covers one place gives products over the whole batch;
* on a small image each place of the kernel gives one product with the results that it is read for,
  and these are added;
* on a larger image without strides, the image gradient is a convolution with the flipped kernel,
  for which there is a fast kernel. It needs memory for two more copies of the kernel;
* on a small image the kernel gradient is one product of all that the kernel reads.

Other gradients stay, also those of grouped convolutions and of types other than float32 and
float64. Numbers are the same except for the order in which they are added.

What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from ..graph.dataflow import ASSUMED_BATCH
from ..graph.graph_constants import constant
from .conv_windows import Window, is_channels_first, window_of
from .thresholds import FEW_PLACES, FEW_ROWS, GATHERED_PLACES, SPREAD_ELEMENTS

_OF_IMAGE, _OF_KERNEL = "Conv2DBackpropInput", "Conv2DBackpropFilter"


def conv_grad_as_matmul(operation: tf.Operation) -> Callable[..., tf.Tensor] | None:
    """Return the function of its inputs that replaces ``operation``; None where it stays."""
    if operation.type not in (_OF_IMAGE, _OF_KERNEL) or is_channels_first(operation):
        return None
    window = window_of(operation)
    if (
        window is None
        or window.groups > 1
        or operation.outputs[0].dtype not in (tf.float32, tf.float64)
    ):
        return None
    image, dy = (
        (operation.outputs if operation.type == _OF_IMAGE else operation.inputs)[0],
        operation.inputs[2],
    )
    elements_per_place = (
        math.prod(window.kernel) * image.shape[-1] * (dy.shape[0] or ASSUMED_BATCH)
    )  # for each place
    make: Callable[..., tf.Tensor] | None = None
    if operation.type == _OF_KERNEL:
        is_small = (
            math.prod(window.result) <= GATHERED_PLACES
            and elements_per_place * math.prod(window.result) <= SPREAD_ELEMENTS
        )
        make = _pointwise_kernel if window.is_pointwise else _kernel_at_once if is_small else None
    elif window.is_pointwise or (
        math.prod(window.image) <= FEW_PLACES
        and elements_per_place * math.prod(window.image) <= SPREAD_ELEMENTS
    ):
        make = _image_place_by_place
    elif set(window.strides) == {1} and min(map(min, window.around_results)) >= 0:
        make = _image_by_convolution
    return make and functools.partial(make, window)


def _pointwise_kernel(window: Window, image: tf.Tensor, _: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    inputs, outputs = image.shape[-1], dy.shape[-1]
    image = _read_at(window, (0,) * len(window.kernel), image)
    found = tf.matmul(_shaped(image, -1, inputs), _shaped(dy, -1, outputs), transpose_a=True)
    return _shaped(found, *window.kernel, inputs, outputs)


def _kernel_at_once(window: Window, image: tf.Tensor, _: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Multiply what the kernel reads for each result, side by side, by the output gradients."""
    inputs, outputs = image.shape[-1], dy.shape[-1]
    image = _padded(image, *((before, max(0, after)) for before, after in window.around_image))
    read = tf.concat([_read_at(window, place, image) for place in _places(window)], constant(-1))
    found = tf.matmul(_shaped(read, -1, read.shape[-1]), _shaped(dy, -1, outputs), transpose_a=True)
    return _shaped(found, *window.kernel, inputs, outputs)


def _image_by_convolution(
    window: Window, _: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    """Slide the kernel backwards over the output gradients."""
    turned = tf.reverse(tf.transpose(kernel, constant((0, 1, 3, 2))), constant((0, 1)))
    padding = [(0, 0), *window.around_results, (0, 0)]
    return tf.nn.conv2d(dy, turned, 1, padding, dilations=window.dilations)


def _image_place_by_place(
    window: Window, _: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    """Multiply the output gradients by each place of the kernel, and add the products."""
    inputs, outputs = kernel.shape[-2:]
    at_places = tf.unstack(_shaped(kernel, math.prod(window.kernel), inputs, outputs))
    terms = []
    for place, at_place in zip(_places(window), at_places):
        steps = [_steps(window, dimension, offset) for dimension, offset in enumerate(place)]
        firsts, lasts = zip(*steps)
        if all(map(operator.le, firsts, lasts)):
            sizes = [last + 1 - first for first, last in steps]
            part = _part(dy, firsts, sizes)
            rows = (part.shape[0] or ASSUMED_BATCH) * math.prod(sizes)
            found = _product(rows, _shaped(part, -1, outputs), at_place)
            terms.append(_spread(window, place, steps, _shaped(found, -1, *sizes, inputs)))
    return tf.add_n(terms) if len(terms) > 1 else terms[0]


def _product(rows: int, dy: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return ``dy``, ``(rows, out)``, times ``kernel``, ``(in, out)``."""
    if rows <= FEW_ROWS:
        return tf.transpose(tf.matmul(kernel, dy, transpose_b=True), constant((1, 0)))
    return tf.matmul(dy, kernel, transpose_b=True)


def _places(window: Window) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, window.kernel))


def _steps(window: Window, dimension: int, offset: int) -> tuple[int, int]:
    """Return the first and last result for which ``offset`` of the kernel is on the image."""
    stride, behind = (
        window.strides[dimension],
        window.before[dimension] - offset * window.dilations[dimension],
    )
    last = (window.image[dimension] - 1 + behind) // stride
    return max(0, -(-behind // stride)), min(window.result[dimension] - 1, last)


def _read_at(window: Window, place: Sequence[int], image: tf.Tensor) -> tf.Tensor:
    """Return, for each result, what is on the padded ``image`` at ``place`` of the kernel."""
    starts = list(map(operator.mul, place, window.dilations))
    tiled, features = list(map(operator.mul, window.result, window.strides)), image.shape[-1]
    if set(window.strides) == {1}:
        return _part(image, starts, window.result)
    if not any(starts) and tiled == list(image.shape[1:-1]):
        # The first of each tile, by slices that reach over many elements: TensorFlow takes a
        # strided one element by element.
        *others, (m, s) = zip(window.result, window.strides)
        tiles = _shaped(image, -1, *itertools.chain(*others), m, s * features)
        sizes = [*(d for n, _ in others for d in (n, 1)), m]
        return _shaped(
            _part(tiles, [0] * len(sizes), sizes, features), -1, *window.result, features
        )
    ends = map(operator.add, starts, window.spreads)
    positions = [
        constant((0, *starts, 0)),
        constant((0, *ends, 0)),
        constant((1, *window.strides, 1)),
    ]
    whole = 1 | 1 << len(starts) + 1  # of batch and features
    return tf.strided_slice(image, *positions, begin_mask=whole, end_mask=whole)


def _spread(
    window: Window, place: Sequence[int], steps: Sequence[tuple[int, int]], values: tf.Tensor
) -> tf.Tensor:
    """Return the image with ``values`` where the kernel has ``place``.

    ``steps`` are the first and last result in each dimension.
    """
    sizes, strides, features = values.shape[1:-1], window.strides, values.shape[-1]
    if set(strides) != {1}:
        shape, padding = [], []
        for m, s in zip(sizes, strides):
            shape += [m, 1]
            padding += [(0, 0), (0, s - 1)]
        tiles = _padded(_shaped(values, -1, *shape, features), *padding)
        values = _shaped(tiles, -1, *map(operator.mul, sizes, strides), features)
    kept, around = [], []
    for dimension, ((first, _), size, stride) in enumerate(zip(steps, sizes, strides)):
        offset = place[dimension] * window.dilations[dimension] - window.before[dimension]
        before = first * stride + offset
        after = window.image[dimension] - before - size * stride
        kept.append(size * stride + min(0, after))
        around.append((before, max(0, after)))
    return _padded(_part(values, [0] * len(sizes), kept), *around)


# What follows takes its positions and sizes from constants that all of a graph share: they were
# half of its operations.


def _shaped(tensor: tf.Tensor, *shape: int) -> tf.Tensor:
    return tf.reshape(tensor, constant(shape))


def _padded(tensor: tf.Tensor, *around: tuple[int, int]) -> tf.Tensor:
    """Return ``tensor`` with zeros around it along the dimensions of space."""
    return tf.pad(tensor, constant(((0, 0), *around, (0, 0)))) if any(map(any, around)) else tensor


def _part(
    tensor: tf.Tensor, starts: Sequence[int], sizes: Sequence[int], features: int | None = None
) -> tf.Tensor:
    """Return ``sizes`` of ``tensor`` from ``starts`` along space, and its first ``features``.

    All features if that is None.
    """
    features = features or tensor.shape[-1]
    if not any(starts) and [*sizes, features] == list(tensor.shape[1:]):
        return tensor
    return tf.slice(tensor, constant((0, *starts, 0)), constant((-1, *sizes, features)))
