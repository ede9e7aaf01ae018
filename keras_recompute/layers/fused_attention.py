"""Attention whose probabilities are never whole, and never kept: its gradient, written by hand, makes them again.

All probabilities of a layer are ``(batch, heads, queries, keys)``: over long sequences a transformer's largest array by far.
Here heads and queries take turns, a few at a time; of a turn only its results stay, and the two numbers per query that its
softmax was made with. That is the recomputation of Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory", and Dao
et al. 2022, "FlashAttention" (algorithms 1 and 4), at the size that a cache holds. What Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", section 5, call selective recomputation saves the same arrays.

The gradient works on the probabilities turned round, ``(keys, queries)``: four of its five products then read rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..engine.passes import target_now
from ..engine.pieces import Dimension, Pieces, dimensions
from ..engine.writing import zeros
from .by_hand import by_hand
from .scan import Tensors, loop

TURN_BYTES = 2**22  # of the probabilities of one turn: what a cache holds, and large enough for a product
_UNKNOWN_BATCH = 32
_QUERIES, _HEADS = 1, 2  # axes, of numbers per query the other way round: (batch, heads, queries)
Whole = tuple[tuple[Dimension, ...], tf.DType]  # shape and type of a tensor
# Takes the pieces of one turn; returns what is joined along the axis, and what is summed over all turns.
Turn = Callable[..., tuple[Tensors, Tensors]]


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor | None, *, scale: float, turn_bytes: int = TURN_BYTES
) -> tf.Tensor:
    """Return softmax(scale query key^T) value, ``(batch, queries, heads, value size)``, in ``value``'s type.

    Shapes: query ``(batch, queries, heads, size)``, key ``(batch, keys, heads, size)``, value ``(batch, keys, heads, value
    size)``; all but the batch static. mask: booleans that broadcast to ``(batch, heads, queries, keys)``; where False, a query
    does not see a key, and a query that sees none takes the mean of all values. The softmax is computed in float32 at least.
    Source: Vaswani et al. 2017, section 3.2.1.

    The heads' rows are brought together turn by turn, so that no array of another order stands beside the whole ones.
    """
    mask = None if mask is None else _reordered(tf.convert_to_tensor(mask))
    batch, queries, heads, keys = query.shape[0] or _UNKNOWN_BATCH, query.shape[1], query.shape[2], key.shape[1]
    per_query = batch * keys * _wide(query.dtype).size
    together = max(d for d in range(1, heads + 1) if heads % d == 0 and (d == 1 or d * queries * per_query <= turn_bytes))
    turns = 1 if together > 1 else math.ceil(queries * per_query / turn_bytes)
    rows = math.ceil(queries / turns)
    turns = math.ceil(queries / rows)
    recurrence = _Attention(heads // together, turns, scale)
    # A query added to fill the last turn has a gradient of zeros, and so adds nothing to any other.
    padded = [_padded(t, turns * rows) for t in (query, *([] if mask is None else [mask]))]
    (out,) = by_hand(recurrence.with_gradient, padded[0], key, value, *padded[1:], count=1, name="attention")
    return out[:, :queries]


class _Attention:
    """The attention of ``by_hand``, in turns over heads and within each over queries."""

    def __init__(self, head_turns: int, query_turns: int, scale: float) -> None:
        self._head_turns, self._query_turns, self._scale = head_turns, query_turns, scale

    def with_gradient(self, *tensors: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        query, key, value, *mask = tensors
        out, largest, log_total = self._forward(query, key, value, mask)

        def gradient(d_out: tf.Tensor) -> Tensors:
            found = self._backward(key, value, (query, out, d_out, largest, log_total, *mask))
            return *found, *(None for _ in mask)

        return (out,), gradient

    def _forward(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: Sequence[tf.Tensor]) -> Tensors:
        """Return the results, and per query the largest score and the logarithm of the sum of all exp(scale (score - largest)).

        Those two are ``(batch, heads, queries)``: the gradient reads them along the queries.
        """

        def results(query: tf.Tensor) -> list[Whole]:
            batch, queries, heads, _ = dimensions(query)
            number = (batch, heads, queries), _wide(query.dtype)
            return [_like(query, value.shape[-1]), number, number]

        def of_heads(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *mask: tf.Tensor) -> tuple[Tensors, Tensors]:
            columns, value = tf.transpose(key, [0, 2, 3, 1]), _reordered(value)

            def of_queries(*of_query: tf.Tensor) -> tuple[Tensors, Tensors]:
                query, *mask = map(_reordered, of_query)
                scores = _scores(query, columns, *mask)
                largest = tf.reduce_max(scores, axis=-1, keepdims=True)
                weights = tf.exp((scores - largest) * self._scale)
                total = tf.reduce_sum(weights, axis=-1, keepdims=True)
                out = tf.matmul(tf.cast(weights, value.dtype), value) / tf.cast(total, value.dtype)
                return (_reordered(out), largest[..., 0], tf.math.log(total[..., 0])), ()

            return in_turns(of_queries, self._query_turns, _QUERIES, [query, *mask], results(query))

        return in_turns(of_heads, self._head_turns, _HEADS, [query, key, value, *mask], results(query))[0]

    def _backward(self, key: tf.Tensor, value: tf.Tensor, of_query: Sequence[tf.Tensor]) -> Tensors:
        """Return the gradients of query, key and value: Dao et al. 2022, appendix B.2."""

        def of_heads(key: tf.Tensor, value: tf.Tensor, *of_query: tf.Tensor) -> tuple[Tensors, Tensors]:
            key, value = _reordered(key), _reordered(value)
            turned = tf.linalg.matrix_transpose(key)

            def of_queries(
                query: tf.Tensor, out: tf.Tensor, d_out: tf.Tensor, largest: tf.Tensor, log_total: tf.Tensor, *mask: tf.Tensor
            ) -> tuple[Tensors, Tensors]:
                query, out, d_out = map(_reordered, (query, out, d_out))
                turned_mask = [tf.linalg.matrix_transpose(_reordered(m)) for m in mask]
                scores = _scores(key, tf.linalg.matrix_transpose(query), *turned_mask)
                # Divided by the sum in the exponent: by a product it would be another pass over the probabilities.
                weights = tf.exp((scores - largest[:, :, None]) * self._scale - log_total[:, :, None])
                d_value = tf.matmul(tf.cast(weights, value.dtype), d_out)
                d_weights = tf.cast(tf.matmul(value, tf.linalg.matrix_transpose(d_out)), weights.dtype)
                if out.dtype == weights.dtype:
                    mean = tf.reduce_sum(d_out * out, axis=-1)[:, :, None]
                else:  # equal to it, had the results not been rounded to half precision
                    mean = tf.reduce_sum(weights * d_weights, axis=-2, keepdims=True)
                d_scores = weights * (d_weights - mean) * self._scale
                if mask:
                    d_scores = tf.where(turned_mask[0], d_scores, tf.zeros([], d_scores.dtype))
                d_scores = tf.cast(d_scores, key.dtype)
                d_query = tf.linalg.matrix_transpose(tf.matmul(turned, d_scores))
                return (_reordered(d_query),), (tf.matmul(d_scores, query), d_value)

            like = [_like(of_query[0])], [_like(key), _like(value)]
            (d_query,), sums = in_turns(of_queries, self._query_turns, _QUERIES, of_query, *like)
            return (d_query, *map(_reordered, sums)), ()

        tensors = [key, value, *of_query]
        return in_turns(of_heads, self._head_turns, _HEADS, tensors, [_like(of_query[0]), _like(key), _like(value)])[0]


def in_turns(
    turn: Turn, count: int, axis: int, tensors: Sequence[tf.Tensor], joined: Sequence[Whole], summed: Sequence[Whole] = ()
) -> tuple[Tensors, Tensors]:
    """Call ``turn`` on ``count`` equal pieces of ``tensors`` along ``axis``, one turn after the other.

    Tensors of rank 3 have their axes 1 and 2 the other way round. One of size 1 along ``axis`` is given whole each time.
    Returns the results joined along ``axis``, of the shapes and types ``joined``, and the summed ones.
    """
    if count == 1:
        return turn(*tensors)
    target = target_now()
    pieces = [None if t.shape[_axis(axis, t.shape.rank)] == 1 else _pieces(_like(t), count, axis) for t in tensors]
    stores = [t if p is None else p.full(t, target) for p, t in zip(pieces, tensors)]
    results = [_pieces(whole, count, axis) for whole in joined]

    def body(i: tf.Tensor, made: Any, sums: Tensors) -> tuple[Any, ...]:
        parts, terms = turn(*(t if p is None else p.get(t, i) for p, t in zip(pieces, stores)))
        made = tuple(p.put(store, i, part) for p, store, part in zip(results, made, parts))
        return i + 1, made, tuple(s + term for s, term in zip(sums, terms))

    start = tuple(p.empty(target) for p in results), tuple(zeros(shape, dtype, target) for shape, dtype in summed)
    _, made, sums = loop(count, body, (tf.constant(0), *start))
    return tuple(p.whole(store) for p, store in zip(results, made)), sums


def _pieces(whole: Whole, count: int, axis: int) -> Pieces:
    shape, dtype = whole
    axis = _axis(axis, len(shape))
    return Pieces(count, tuple(d // count if i == axis else d for i, d in enumerate(shape)), dtype, axis)


def _axis(axis: int, rank: int) -> int:
    """Return where ``axis``, queries or heads, is in a tensor of ``rank``: numbers per query have no size, and heads first."""
    return axis if rank == 4 else _QUERIES + _HEADS - axis


def _like(tensor: tf.Tensor, last: Dimension | None = None) -> Whole:
    *shape, size = dimensions(tensor)
    return (*shape, size if last is None else last), tensor.dtype


def _reordered(tensor: tf.Tensor) -> tf.Tensor:
    """Return ``(batch, heads, length, size)`` as ``(batch, length, heads, size)``, and the other way round."""
    return tf.transpose(tensor, [0, 2, 1, 3])


def _scores(rows: tf.Tensor, columns: tf.Tensor, *mask: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(rows, columns)
    scores = tf.cast(scores, _wide(scores.dtype))
    return tf.where(mask[0], scores, tf.constant(-0.7 * scores.dtype.max, scores.dtype)) if mask else scores


def _padded(tensor: tf.Tensor, length: int) -> tf.Tensor:
    missing = length - tensor.shape[_QUERIES]
    if missing == 0 or tensor.shape[_QUERIES] == 1:
        return tensor
    return tf.pad(tensor, [(0, missing) if axis == _QUERIES else (0, 0) for axis in range(4)])


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32
