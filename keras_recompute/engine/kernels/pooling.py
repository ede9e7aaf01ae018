"""Pooling in sections, without the arrays that XLA makes for its gradient.

For XLA:CPU. It takes the gradient of max pooling for a search. Beside the image it carries the
place of each element, an array of whole numbers for every dimension, through loops that nothing is
fused with. Here one byte per window says which of its elements is the largest, and the gradient is
a sum of slices. That takes a fifth to an eighteenth of the time, and at most 1.5 times the image
instead of 4 to 8 times. Averages, and pooling itself, are sums and maxima of slices as well, which
XLA fuses with their surroundings. Other compilers keep their own forms.

Of equal elements the first one gets the gradient, as with TensorFlow's own kernel; XLA takes
another one in some windows that reach over the edge. Everything else is the same to the bit.

What it gains: benchmarks/notes/pooling.md.

An image is (batch, space, channels). A *piece* of it is one element of each window, at the same
place of all windows. A *phase* is every ``stride``-th element of the image, in each dimension of
space.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..graph.dataflow import present
from .conv_windows import covered, same_padding
from .thresholds import POOLED_PLACES

Place = tuple[int, ...]

_OFFSETS_OF_A_BYTE = 127


@dataclass(frozen=True)
class PoolingWindow:
    """How a window moves over an image: everything per dimension of space."""

    image: tuple[int, ...]
    window: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]  # padding

    @property
    def places(self) -> list[Place]:
        """The places of a window in the order in which XLA reads them."""
        return list(itertools.product(*map(range, self.window)))

    @property
    def after(self) -> list[int]:
        """The padding behind the image."""
        sizes = zip(self.image, self.window, self.result, self.strides, self.before)
        return [max(0, (m - 1) * s + k - n - p) for n, k, m, s, p in sizes]

    @property
    def counts(self) -> np.ndarray:
        """How many elements of the image each window has, of shape (1, space, 1)."""
        per_dimension = []
        for n, k, m, s, p in zip(self.image, self.window, self.result, self.strides, self.before):
            starts = np.arange(m) * s - p
            per_dimension.append(np.minimum(starts + k, n) - np.maximum(starts, 0))
        return functools.reduce(np.multiply.outer, per_dimension)[None, ..., None]


def rewrite_pooling(operation: tf.Operation) -> Callable[..., tf.Tensor] | None:
    """Return the function of its inputs that replaces ``operation``; None where it stays."""
    make = _MAKE.get(operation.type)
    if make is None or operation.get_attr("data_format") not in (b"NHWC", b"NDHWC"):
        return None
    if operation.get_attr("padding") not in (b"SAME", b"VALID"):
        return None
    if operation.type in _FORWARD:
        image, result = operation.inputs[0].shape, operation.outputs[0].shape
    else:
        image, result = operation.outputs[0].shape, operation.inputs[-1].shape
    sizes, strides = operation.get_attr("ksize"), operation.get_attr("strides")
    for shape in (image, result):
        if not shape.rank or not shape[1:].is_fully_defined():
            return None
    # The batch and the channels must not be pooled.
    is_over_space = sizes[0] == sizes[-1] == strides[0] == strides[-1] == 1
    if not is_over_space or math.prod(sizes) > POOLED_PLACES:
        return None
    space = slice(1, -1)
    before = (0,) * len(sizes[space])
    if operation.get_attr("padding") == b"SAME":
        before = same_padding(image[space], result[space], strides[space], sizes[space])
    window = PoolingWindow(
        image=tuple(image[space]),
        window=tuple(sizes[space]),
        result=tuple(result[space]),
        strides=tuple(strides[space]),
        before=before,
    )
    return functools.partial(make, window)


def _maximum(window: PoolingWindow, image: tf.Tensor) -> tf.Tensor:
    largest = tf.constant(-math.inf, image.dtype)
    for piece in _pieces(window, image, outside=-math.inf):
        # A comparison with NaN is False, so NaN is passed over, as by TensorFlow's kernel.
        largest = tf.where(piece > largest, piece, largest)
    return largest


def _average(window: PoolingWindow, image: tf.Tensor) -> tf.Tensor:
    total = functools.reduce(tf.add, _pieces(window, image, outside=0.0))
    return total / tf.constant(window.counts, image.dtype)


def _maximum_gradient(
    window: PoolingWindow, image: tf.Tensor, _: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    """Give each window's gradient to the first of its largest elements.

    Which one follows from the elements alone. A compiler computes an element again where it is
    read, and not always to the last digit, so none is compared with a maximum that was computed
    elsewhere.
    """
    places = window.places
    number_type = tf.int8 if len(places) <= _OFFSETS_OF_A_BYTE else tf.int32
    largest, argmax = tf.constant(-math.inf, image.dtype), tf.constant(0, number_type)
    for number, piece in enumerate(_pieces(window, image, outside=-math.inf)):
        is_larger = piece > largest
        largest = tf.where(is_larger, piece, largest)
        argmax = tf.where(is_larger, tf.constant(number, number_type), argmax)
    # No window has an element number -1, so padding is never chosen.
    argmax_near = _as_far_as_phases_read(window, argmax, -1)
    dy_near = _as_far_as_phases_read(window, dy, 0)
    nothing = tf.zeros([], dy.dtype)

    def term(place: Place, of_phase: Any) -> tf.Tensor:
        is_chosen = tf.equal(argmax_near[of_phase], tf.constant(places.index(place), number_type))
        return tf.where(is_chosen, dy_near[of_phase], nothing)

    return _image_of(window, term, dy)


def _average_gradient(window: PoolingWindow, _: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Give each window's gradient, in equal shares, to its elements."""
    shares = _as_far_as_phases_read(window, dy / tf.constant(window.counts, dy.dtype), 0)
    return _image_of(window, lambda _, of_phase: shares[of_phase], dy)


_FORWARD = {"MaxPool": _maximum, "MaxPool3D": _maximum, "AvgPool": _average, "AvgPool3D": _average}
_MAKE: dict[str, Callable[..., tf.Tensor]] = {
    **_FORWARD,
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), _maximum_gradient),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), _average_gradient),
}


def _pieces(window: PoolingWindow, image: tf.Tensor, outside: float) -> Iterator[tf.Tensor]:
    """Yield the piece of ``image`` for each place, with ``outside`` around the image.

    A piece has the shape of the result.
    """
    padding = list(zip(window.before, window.after))
    if any(map(any, padding)):
        image = tf.pad(image, [(0, 0), *padding, (0, 0)], constant_values=outside)
    for place in window.places:
        ends = map(operator.add, place, covered(window.result, window.strides))
        yield image[(slice(None), *map(slice, place, ends, window.strides))]


def _reach(window: PoolingWindow) -> list[int]:
    """Return how many windows, one after the other, share an element."""
    return [-(-k // s) for k, s in zip(window.window, window.strides)]


def _phase_sizes(window: PoolingWindow) -> list[int]:
    return [-(-(n + p) // s) for n, p, s in zip(window.image, window.before, window.strides)]


def _as_far_as_phases_read(window: PoolingWindow, values: tf.Tensor, outside: float) -> tf.Tensor:
    """Return ``values``, one per window, with ``outside`` where phases read beyond the windows."""
    reach, sizes = _reach(window), _phase_sizes(window)
    padding = [(r - 1, max(0, size - m)) for r, size, m in zip(reach, sizes, window.result)]
    if not any(map(any, padding)):
        return values
    return tf.pad(values, [(0, 0), *padding, (0, 0)], constant_values=outside)


def _image_of(
    window: PoolingWindow, term: Callable[[Place, Any], tf.Tensor], like: tf.Tensor
) -> tf.Tensor:
    """Return the image whose elements are sums of terms, one for each window with the element.

    ``term(place, of_phase)`` is what windows give to their elements at ``place``. ``of_phase``
    slices values of ``_as_far_as_phases_read`` to the windows that have an element of the phase
    there.
    """
    reach, sizes = _reach(window), _phase_sizes(window)
    phases = []
    for first in itertools.product(*map(range, window.strides)):
        terms = []
        # Windows in their order, which is the order in which TensorFlow adds up.
        for starts in itertools.product(*map(range, reach)):
            offset = [r - 1 - start for r, start in zip(reach, starts)]
            place = tuple(a + t * s for a, t, s in zip(first, offset, window.strides))
            if all(map(operator.lt, place, window.window)):
                ends = map(operator.add, starts, sizes)
                terms.append(term(place, (slice(None), *map(slice, starts, ends))))
        phases.append(functools.reduce(tf.add, terms) if terms else None)
    image = _interleaved(window, phases, like)
    ends = map(operator.add, window.before, window.image)
    return image[(slice(None), *map(slice, window.before, ends))]


def _interleaved(
    window: PoolingWindow, phases: Sequence[tf.Tensor | None], like: tf.Tensor
) -> tf.Tensor:
    """Return the image of ``phases``, in the order of their first elements; None is zeros."""
    known = present(phases)[0]
    if len(phases) == 1:
        return known
    rank, sizes = len(window.strides), _phase_sizes(window)
    stack = tf.stack([tf.zeros_like(known) if phase is None else phase for phase in phases])
    stack = tf.reshape(stack, [*window.strides, -1, *sizes, like.shape[-1]])
    # From (strides, batch, sizes, channels): each stride comes right after its size.
    order = [rank]
    for dimension in range(rank):
        order += [rank + 1 + dimension, dimension]
    order.append(2 * rank + 1)
    space = map(operator.mul, sizes, window.strides)
    return tf.reshape(tf.transpose(stack, order), [-1, *space, like.shape[-1]])
