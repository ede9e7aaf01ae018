"""Attention on JAX that keeps no probabilities: ``fused_attention`` has the algorithm.

One loop runs over tiles of the batch, the heads and the queries. It writes results in place, and
its gradient adds those of keys and values in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..backends import GPU, described_backend
from ..seams.jax.flash_attention import has_flash_attention
from .jax_vjp import call_with_vjp

# Bytes of the probabilities of a tile, which fit in a cache.
TILE_BYTES = 2**22
# Causal attention skips the keys behind each block of queries. The program has a copy of the loop
# for each block, so blocks are few and not small.
_QUERY_BLOCKS, _QUERY_BLOCK = 4, 64

Arrays = Sequence[jax.Array]


def has_flash(dtype: Any) -> bool:
    """Whether Keras's layer runs on cuDNN's flash attention, on the GPU that is traced for."""
    is_on_gpu = (described_backend() or jax.default_backend()) == GPU
    return is_on_gpu and jnp.dtype(dtype).itemsize == 2 and has_flash_attention()


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    *,
    scale: float,
    is_causal: bool = False,
    tile_bytes: int = TILE_BYTES,
) -> jax.Array:
    """Return softmax(scale query key^T) value, ``(batch, queries, heads, value size)``.

    Arguments are those of ``fused_attention.attention``.
    """
    queries = query.shape[1]
    blocks = max(1, min(_QUERY_BLOCKS, queries // _QUERY_BLOCK)) if is_causal else 1
    length = math.ceil(queries / blocks)
    results = []
    for first in range(0, queries, length):
        rows = query[:, first : first + length]
        seen = min(first + length, queries) if is_causal else key.shape[1]
        tiles = _tiles(rows.shape, seen, tile_bytes)
        made = _Attention(tiles, scale, first if is_causal else None)
        masks = [] if mask is None else [_padded(mask, tiles.padding, axis=2)]
        (out,) = call_with_vjp(
            made.with_vjp,
            _padded(rows, tiles.padding, axis=1),
            key[:, :seen],
            value[:, :seen],
            *masks,
            count=1,
            name="attention",
        )
        results.append(out[:, : rows.shape[1]])
    return jnp.concatenate(results, axis=1) if blocks > 1 else results[0]


@dataclass(frozen=True)
class _Tiles:
    """How queries are divided: the sizes of a tile, the number of tiles, and added queries.

    Sizes and numbers are of the batch, the queries and the heads.
    """

    sizes: tuple[int, int, int]
    numbers: tuple[int, int, int]
    padding: int

    @property
    def count(self) -> int:
        """The number of tiles."""
        return math.prod(self.numbers)

    def starts(self, tile: Any) -> tuple[Any, Any, Any]:
        """Return where tile number ``tile`` begins."""
        _, rows, heads = self.numbers
        place = tile // (rows * heads), tile // heads % rows, tile % heads
        batch, row, head = (at * size for at, size in zip(place, self.sizes))
        return batch, row, head


def _tiles(shape: Sequence[int], keys: int, tile_bytes: int) -> _Tiles:
    """Return tiles of all queries if they fit, of as many heads, and then of as many samples."""
    batch, queries, heads, _ = shape
    fitting = max(1, tile_bytes // (4 * keys))
    count = math.ceil(queries / fitting)
    rows = math.ceil(queries / count)
    count = math.ceil(queries / rows)
    together = _divisor(heads, fitting // rows)
    samples = _divisor(batch, fitting // (rows * together))
    numbers = batch // samples, count, heads // together
    return _Tiles((samples, rows, together), numbers, count * rows - queries)


def _divisor(number: int, largest: int) -> int:
    """Return the largest divisor of ``number`` that is at most ``largest``, or 1."""
    candidates = range(min(number, max(largest, 1)), 0, -1)
    return next(each for each in candidates if number % each == 0)


class _Attention:
    """Attention and its gradient, as ``call_with_vjp`` takes them.

    ``first`` is the position of the first query if attention is causal.
    """

    def __init__(self, tiles: _Tiles, scale: float, first: int | None) -> None:
        self._tiles, self._scale, self._first = tiles, scale, first

    def with_vjp(self, *arrays: jax.Array) -> tuple[Arrays, Callable[..., Arrays]]:
        query, key, value, *mask = arrays
        out, largest, log_total = self._forward(query, key, value, mask)

        def gradient(d_out: jax.Array) -> Arrays:
            return self._backward((query, key, value), mask, out, d_out, largest, log_total)

        return (out,), gradient

    def _forward(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: Arrays
    ) -> tuple[jax.Array, ...]:
        """Return the results, and of each softmax the largest score and the log of its sum."""
        batch, queries, heads, _ = query.shape
        out = jnp.zeros_like(value, shape=(batch, queries, heads, value.shape[-1]))
        number = jnp.zeros_like(query, shape=(batch, queries, heads), dtype=_wide(query))

        def body(tile: Any, carried: Any) -> Any:
            rows = self._tiles.starts(tile)
            scores, _ = self._scores(query, key, mask, rows)
            largest = scores.max(axis=-1, keepdims=True)
            weights = jnp.exp(scores - largest)
            total = weights.sum(axis=-1, keepdims=True)
            values = self._of_tile(value, rows, all_rows=True)
            out = jnp.einsum("bhqk,bkhd->bqhd", (weights / total).astype(value.dtype), values)
            numbers = _by_query(largest), _by_query(jnp.log(total))
            made = []
            for store, part in zip(carried, (out, *numbers)):
                made.append(_put(store, part, rows))
            return tuple(made)

        return lax.fori_loop(0, self._tiles.count, body, (out, number, number))

    def _backward(
        self,
        given: Arrays,
        mask: Arrays,
        out: jax.Array,
        d_out: jax.Array,
        largest: jax.Array,
        log_total: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """Return the gradients of query, key and value: Dao et al. 2022, appendix B.2."""
        query, key, value = given

        def body(tile: Any, carried: Any) -> Any:
            d_query, d_key, d_value = carried
            rows = self._tiles.starts(tile)
            q, o, do = (self._of_tile(each, rows) for each in (query, out, d_out))
            k, v = (self._of_tile(each, rows, all_rows=True) for each in (key, value))
            scores, seen = self._scores(query, key, mask, rows)
            numbers = (self._of_tile(each, rows) for each in (largest, log_total))
            greatest, log_sum = (each.swapaxes(1, 2)[..., None] for each in numbers)
            weights = jnp.exp(scores - greatest - log_sum)
            d_weights = _product("bqhd,bkhd->bhqk", do, v)
            mean = (do * o).astype(scores.dtype).sum(axis=-1).swapaxes(1, 2)[..., None]
            d_scores = weights * (d_weights - mean) * self._scale
            if seen is not None:
                # A query that sees no key has weights, and its scores are all alike.
                d_scores = jnp.where(seen, d_scores, 0)
            d_scores = d_scores.astype(query.dtype)
            d_query = _put(d_query, jnp.einsum("bhqk,bkhd->bqhd", d_scores, k), rows)
            d_keys = _product("bhqk,bqhd->bkhd", d_scores, q)
            d_values = _product("bhqk,bqhd->bkhd", weights.astype(value.dtype), do)
            start = rows[0], 0, rows[2]
            return d_query, _add(d_key, d_keys, start), _add(d_value, d_values, start)

        sums = (jnp.zeros_like(each, dtype=_wide(each)) for each in (key, value))
        start = jnp.zeros_like(query), *sums
        d_query, d_key, d_value = lax.fori_loop(0, self._tiles.count, body, start)
        return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)

    def _scores(
        self, query: jax.Array, key: jax.Array, mask: Arrays, rows: Sequence[Any]
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the scaled scores of a tile, and which keys its queries see."""
        keys = self._of_tile(key, rows, all_rows=True)
        scores = _product("bqhd,bkhd->bhqk", self._of_tile(query, rows), keys) * self._scale
        seen = None
        for each in mask:
            starts = rows[0], rows[2], rows[1]
            sizes = self._tiles.sizes[0], self._tiles.sizes[2], self._tiles.sizes[1]
            seen = _slice(each, starts, sizes)
        if self._first is not None:
            positions = self._first + rows[1] + jnp.arange(self._tiles.sizes[1])
            seen = positions[:, None] >= jnp.arange(key.shape[1])
        if seen is None:
            return scores, None
        return jnp.where(seen, scores, -0.7 * jnp.finfo(scores.dtype).max), seen

    def _of_tile(self, array: jax.Array, rows: Sequence[Any], *, all_rows: bool = False) -> Any:
        """Return the part of ``(batch, length, heads, ...)`` of a tile."""
        batch, length, heads = self._tiles.sizes
        if all_rows:
            return _slice(array, (rows[0], 0, rows[2]), (batch, array.shape[1], heads))
        return _slice(array, rows, (batch, length, heads))


def _slice(array: jax.Array, starts: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
    """Return a part of the first axes of ``array``; axes of one element are broadcast."""
    begin, length = [], []
    for axis, whole in enumerate(array.shape):
        is_cut = axis < len(starts) and whole > 1
        begin.append(starts[axis] if is_cut else 0)
        length.append(sizes[axis] if is_cut else whole)
    return lax.dynamic_slice(array, begin, length)


def _put(array: jax.Array, part: jax.Array, starts: Sequence[Any]) -> jax.Array:
    begin = [*starts, *[0] * (array.ndim - len(starts))]
    return lax.dynamic_update_slice(array, part.astype(array.dtype), begin)


def _add(array: jax.Array, part: jax.Array, starts: Sequence[Any]) -> jax.Array:
    return _put(array, part + _slice(array, starts, part.shape[: len(starts)]), starts)


def _by_query(number: jax.Array) -> jax.Array:
    """Return ``(batch, heads, queries, 1)`` as ``(batch, queries, heads)``."""
    return number[..., 0].swapaxes(1, 2)


def _product(formula: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(formula, a, b, preferred_element_type=_wide(a))


def _wide(array: jax.Array) -> Any:
    """Return the type that products are summed in: float32 at least."""
    return jnp.promote_types(array.dtype, jnp.float32)


def _padded(array: jax.Array, count: int, *, axis: int) -> jax.Array:
    """Return ``array`` with ``count`` zeros behind ``axis``, unless that has one element."""
    if not count or array.shape[axis] == 1:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, count)
    return jnp.pad(array, widths)
