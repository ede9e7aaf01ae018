"""Attention that keeps no probabilities, and recomputes them tile by tile in its gradient.

All probabilities of a layer are ``(batch, heads, queries, keys)``, over long sequences by far the
largest array of a transformer. Here only a tile of heads and queries is computed at a time. Its
results stay, and two numbers per query from its softmax.

The gradient works on the transposed probabilities, ``(keys, queries)``, so that four of its five
products read rows.

Causal attention is divided into a few blocks of queries. Each block reads the keys up to its own
end and skips those after it. A mask is needed for the keys within the block alone, since all
earlier ones are visible.

Sources: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory"; Dao et al. 2022,
"FlashAttention", algorithms 1 and 4, here with tiles that fit a cache. Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 5, save the same arrays
by selective recomputation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any

import tensorflow as tf

from ..engine import target_now
from ..engine.graph import ASSUMED_BATCH, zeros
from ..engine.scan import Dimension, SliceStore, dimensions, empty_all, pad_into, put_all, whole_all
from .hand_written_vjp import call_with_vjp
from .scan import Tensors, run_loop

# Bytes of the probabilities of a tile: they fit in a cache, and a product of this size is fast.
TILE_BYTES = 2**22
# The graph has a copy of the computation for each block, so blocks are few and not small.
_QUERY_BLOCKS, _QUERY_BLOCK = 4, 64
# Axes. Keys and values are reordered; numbers per query are (batch, heads, queries).
_KEYS, _QUERIES, _HEADS = 2, 1, 2
# Shape and type of a tensor.
Whole = tuple[tuple[Dimension, ...], tf.DType]
# Takes the slices of one tile; returns results to concatenate, and results to sum over all tiles.
Tile = Callable[..., tuple[Tensors, Tensors]]


def has_flash(_: str) -> bool:
    """Whether Keras's layer runs on flash attention: not on TensorFlow."""
    return False


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None,
    *,
    scale: float,
    is_causal: bool = False,
    tile_bytes: int = TILE_BYTES,
) -> tf.Tensor:
    """Return softmax(scale query key^T) value in ``value``'s type.

    Args:
        query: ``(batch, queries, heads, size)``; here and below all but the batch is static.
        key: ``(batch, keys, heads, size)``.
        value: ``(batch, keys, heads, value size)``.
        mask: Booleans that broadcast to ``(batch, heads, queries, keys)``; False hides a key from a
            query. A query that sees no key takes the mean of all values.
        scale: The factor of the scores.
        is_causal: In place of a mask: a query sees the keys up to its own position.
        tile_bytes: At most so many bytes of probabilities are computed at once.

    Returns:
        ``(batch, queries, heads, value size)``. The softmax is computed in float32 at least.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    batch = query.shape[0] or ASSUMED_BATCH
    queries = query.shape[1]
    heads = query.shape[2]
    keys = key.shape[1]
    if is_causal:
        # Positions of queries, given like a mask, so that each tile is handed its own.
        masks = [tf.reshape(tf.range(queries), [1, queries, 1, 1])]
    else:
        masks = [] if mask is None else [_swap_heads(tf.convert_to_tensor(mask))]
    blocks = max(1, min(_QUERY_BLOCKS, queries // _QUERY_BLOCK)) if is_causal else 1
    block, per_query = math.ceil(queries / blocks), batch * keys * _wide(query.dtype).size
    together = 1
    for divisor in range(2, heads + 1):
        if heads % divisor == 0 and divisor * block * per_query <= tile_bytes:
            together = divisor
    tiles = 1 if together > 1 else math.ceil(block * per_query / tile_bytes)
    rows = math.ceil(block / tiles)
    tiles = math.ceil(block / rows)
    recurrence = _Attention(heads // together, blocks, tiles, scale, is_causal)
    # A query added to fill the last tile has a gradient of zeros, and so adds nothing to any other.
    padded = [_pad_queries(t, blocks * tiles * rows) for t in (query, *masks)]
    (out,) = call_with_vjp(
        recurrence.with_vjp, padded[0], key, value, *padded[1:], count=1, name="attention"
    )
    return out[:, :queries]


class _Attention:
    """Attention and its gradient, as ``call_with_vjp`` takes them.

    Nested in this order: tiles of heads, blocks of queries, tiles of the queries of a block.
    """

    def __init__(
        self, head_tiles: int, blocks: int, query_tiles: int, scale: float, is_causal: bool
    ) -> None:
        self._head_tiles = head_tiles
        self._blocks = blocks
        self._query_tiles = query_tiles
        self._scale = scale
        self._is_causal = is_causal

    def with_vjp(self, *tensors: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        query, key, value, *mask = tensors
        out, largest, log_total = self._forward(query, key, value, mask)

        def gradient(d_out: tf.Tensor) -> Tensors:
            found = self._backward(key, value, (query, out, d_out, largest, log_total, *mask))
            return (*found, *[None] * len(mask))

        return (out,), gradient

    def _forward(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: Sequence[tf.Tensor]
    ) -> Tensors:
        """Return the results, and per query the largest score and the logarithm of the softmax sum.

        The sum is over exp(scale (score - largest)). Both numbers are ``(batch, heads, queries)``,
        since the gradient reads them along the queries.
        """

        def results(query: tf.Tensor) -> list[Whole]:
            batch, queries, heads, _ = dimensions(query)
            number = (batch, heads, queries), _wide(query.dtype)
            return [_like(query, value.shape[-1]), number, number]

        def of_heads(
            query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *mask: tf.Tensor
        ) -> tuple[Tensors, Tensors]:
            key, value = _swap_heads(key), _swap_heads(value)

            def of_queries(
                common: int, key: tf.Tensor, value: tf.Tensor, *of_query: tf.Tensor
            ) -> tuple[Tensors, Tensors]:
                query, *mask = map(_swap_heads, of_query)
                parts = self._parts(common, key, value, mask)
                scores = [
                    _scores(query, tf.linalg.matrix_transpose(key), *mask) for key, _, mask in parts
                ]
                row_max = partial(tf.reduce_max, axis=-1, keepdims=True)
                row_sum = partial(tf.reduce_sum, axis=-1, keepdims=True)
                largest = reduce(tf.maximum, map(row_max, scores))
                weights = [tf.exp((s - largest) * self._scale) for s in scores]
                total = _add_all(map(row_sum, weights))
                out = _add_all(
                    tf.matmul(tf.cast(w, value.dtype), value)
                    for w, (_, value, _) in zip(weights, parts)
                )
                out = _swap_heads(out / tf.cast(total, value.dtype))
                return (out, largest[..., 0], tf.math.log(total[..., 0])), ()

            return self._over_queries(of_queries, [key, value], [query, *mask], results)

        return map_tiles(
            of_heads, self._head_tiles, _HEADS, [query, key, value, *mask], results(query)
        )[0]

    def _backward(self, key: tf.Tensor, value: tf.Tensor, of_query: Sequence[tf.Tensor]) -> Tensors:
        """Return the gradients of query, key and value: Dao et al. 2022, appendix B.2."""

        def of_heads(
            key: tf.Tensor, value: tf.Tensor, *of_query: tf.Tensor
        ) -> tuple[Tensors, Tensors]:
            key, value = _swap_heads(key), _swap_heads(value)

            def of_queries(
                common: int, key: tf.Tensor, value: tf.Tensor, *of_query: tf.Tensor
            ) -> tuple[Tensors, Tensors]:
                query, out, d_out = map(_swap_heads, of_query[:3])
                largest, log_total, *mask = of_query[3:]
                parts = self._parts(common, key, value, list(map(_swap_heads, mask)))
                made = []
                for key, value, mask in parts:
                    seen = list(map(tf.linalg.matrix_transpose, mask))
                    scores = _scores(key, tf.linalg.matrix_transpose(query), *seen)
                    # Subtracting the logarithm in the exponent divides by the sum without another
                    # pass over the probabilities.
                    weights = tf.exp(
                        (scores - largest[:, :, None]) * self._scale - log_total[:, :, None]
                    )
                    d_weights = tf.cast(
                        tf.matmul(value, tf.linalg.matrix_transpose(d_out)), weights.dtype
                    )
                    made.append((key, seen, weights, d_weights))
                if out.dtype == weights.dtype:
                    mean = tf.reduce_sum(d_out * out, axis=-1)[:, :, None]
                else:  # the same sum, without the rounding of the results to half precision
                    mean = _add_all(
                        tf.reduce_sum(w * d, axis=-2, keepdims=True) for _, _, w, d in made
                    )
                d_queries, d_keys, d_values = [], [], []
                for key, seen, weights, d_weights in made:
                    d_scores = weights * (d_weights - mean) * self._scale
                    # In causal attention an invisible key has the weight 0 already.
                    if seen and not self._is_causal:
                        d_scores = tf.where(seen[0], d_scores, tf.zeros([], d_scores.dtype))
                    d_scores = tf.cast(d_scores, key.dtype)
                    d_queries.append(tf.matmul(tf.linalg.matrix_transpose(key), d_scores))
                    d_keys.append(tf.matmul(d_scores, query))
                    d_values.append(tf.matmul(tf.cast(weights, d_out.dtype), d_out))
                d_query = tf.linalg.matrix_transpose(_add_all(d_queries))
                return (_swap_heads(d_query),), (
                    _concatenate(d_keys, _KEYS),
                    _concatenate(d_values, _KEYS),
                )

            (d_query,), sums = self._over_queries(
                of_queries, [key, value], of_query, lambda query: [_like(query)], sums=True
            )
            return (d_query, *map(_swap_heads, sums)), ()

        tensors = [key, value, *of_query]
        return map_tiles(
            of_heads,
            self._head_tiles,
            _HEADS,
            tensors,
            [_like(of_query[0]), _like(key), _like(value)],
        )[0]

    def _parts(
        self, common: int, key: tf.Tensor, value: tf.Tensor, mask: list[tf.Tensor]
    ) -> list[Any]:
        """Return keys and values in parts, each with its mask.

        Without causality there is one part with ``mask``. In causal attention ``mask`` holds the
        positions of the queries: the first ``common`` keys are visible to all of them and need no
        mask, and the others are compared with the positions.
        """
        if not self._is_causal:
            return [(key, value, mask)]
        keys, (places,) = key.shape[_KEYS], mask
        common = min(common, keys)
        seen = [tf.range(common, keys) <= places]
        parts = []
        for begin, end, of_part in ((0, common, []), (common, keys, seen)):
            if begin < end:
                parts.append((key[:, :, begin:end], value[:, :, begin:end], of_part))
        return parts

    def _over_queries(
        self,
        tile: Tile,
        of_key: Sequence[tf.Tensor],
        of_query: Sequence[tf.Tensor],
        joined: Callable[[tf.Tensor], list[Whole]],
        *,
        sums: bool = False,
    ) -> tuple[Tensors, Tensors]:
        """Call ``tile`` for tiles of queries, block by block; concatenate and sum its results.

        ``tile`` takes the number of keys that every query of the block sees, the visible keys and
        values, and slices of the tensors ``of_query``. ``joined`` returns the shapes of its
        results. With ``sums`` it also returns terms with the shapes of ``of_key``, which are
        summed.
        """
        keys, length = of_key[0].shape[-2], of_query[0].shape[_QUERIES] // self._blocks
        pieces = _of_each(of_query, self._blocks, _QUERIES)
        parts: list[Tensors] = []
        totals: list[tf.Tensor] | None = None
        for number in range(self._blocks):
            seen = min(keys, (number + 1) * length) if self._is_causal else keys
            visible = [t[:, :, :seen] for t in of_key] if seen < keys else of_key
            here = list(of_query)
            for n, piece in enumerate(pieces if self._blocks > 1 else ()):
                if piece is not None:
                    here[n] = piece.slice(of_query[n], number)
            summed = list(map(_like, visible)) if sums else []
            # Without XLA the slices of two parts cost more than a mask does.
            common = number * length if target_now().is_xla else 0
            block = partial(tile, common, *visible)
            shapes = joined(here[0])
            part, terms = map_tiles(block, self._query_tiles, _QUERIES, here, shapes, summed)
            parts.append(part)
            whole = [pad_into(term, like, _KEYS, 0) for term, like in zip(terms, of_key)]
            totals = whole if totals is None else list(map(operator.add, totals, whole))
        results = [_concatenate(p, _axis(_QUERIES, p[0].shape.rank)) for p in zip(*parts)]
        return tuple(results), tuple(totals or ())


def map_tiles(
    tile: Tile,
    count: int,
    axis: int,
    tensors: Sequence[tf.Tensor],
    joined: Sequence[Whole],
    summed: Sequence[Whole] = (),
) -> tuple[Tensors, Tensors]:
    """Call ``tile`` on ``count`` equal slices of ``tensors`` along ``axis``, one after the other.

    Tensors of rank 3 have axes 1 and 2 swapped. A tensor of size 1 along ``axis`` is passed whole.
    Returns the results, concatenated along ``axis``, of the shapes and types ``joined``; and the
    sums of the terms that ``summed`` describes.
    """
    if count == 1:
        return tile(*tensors)
    target = target_now()
    pieces = _of_each(tensors, count, axis)
    stores = [t if p is None else p.full(t, target) for p, t in zip(pieces, tensors)]
    results = [_pieces(whole, count, axis) for whole in joined]

    def body(i: tf.Tensor, made: Any, sums: Tensors) -> tuple[Any, ...]:
        here = [t if p is None else p.get(t, i) for p, t in zip(pieces, stores)]
        parts, terms = tile(*here)
        made = tuple(put_all(results, made, i, parts))
        return i + 1, made, tuple(map(operator.add, sums, terms))

    stores_of_results = tuple(empty_all(results, target))
    zero_sums = tuple(zeros(shape, dtype, target) for shape, dtype in summed)
    start = tf.constant(0), stores_of_results, zero_sums
    _, made, sums = run_loop(count, body, start)
    return tuple(whole_all(results, made)), sums


def _of_each(tensors: Sequence[tf.Tensor], count: int, axis: int) -> list[SliceStore | None]:
    """Return the ``count`` slices of each tensor; None for one of size 1 along ``axis``."""
    found: list[SliceStore | None] = []
    for tensor in tensors:
        is_whole = tensor.shape[_axis(axis, tensor.shape.rank)] == 1
        found.append(None if is_whole else _pieces(_like(tensor), count, axis))
    return found


def _pieces(whole: Whole, count: int, axis: int) -> SliceStore:
    shape, dtype = whole
    axis = _axis(axis, len(shape))
    sizes = list(shape)
    sizes[axis] = sizes[axis] // count
    return SliceStore(count, tuple(sizes), dtype, axis)


def _axis(axis: int, rank: int) -> int:
    """Return the position of ``axis`` in a tensor of ``rank``; rank 3 has heads first."""
    return axis if rank == 4 else _QUERIES + _HEADS - axis


def _like(tensor: tf.Tensor, last: Dimension | None = None) -> Whole:
    *shape, size = dimensions(tensor)
    return (*shape, size if last is None else last), tensor.dtype


def _swap_heads(tensor: tf.Tensor) -> tf.Tensor:
    """Swap the axes of heads and length of a tensor of rank 4."""
    return tf.transpose(tensor, [0, 2, 1, 3])


def _scores(rows: tf.Tensor, columns: tf.Tensor, *mask: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(rows, columns)
    scores = tf.cast(scores, _wide(scores.dtype))
    return (
        tf.where(mask[0], scores, tf.constant(-0.7 * scores.dtype.max, scores.dtype))
        if mask
        else scores
    )


def _add_all(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Return the sum of the parts. One alone stays as it is."""
    return reduce(tf.add, tensors)


def _concatenate(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Return the parts one after the other along ``axis``. One alone stays as it is."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)


def _pad_queries(tensor: tf.Tensor, length: int) -> tf.Tensor:
    missing = length - tensor.shape[_QUERIES]
    if missing == 0 or tensor.shape[_QUERIES] == 1:
        return tensor
    paddings = [(0, 0)] * 4
    paddings[_QUERIES] = (0, missing)
    return tf.pad(tensor, paddings)


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32
