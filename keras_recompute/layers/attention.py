"""Keras's multi-head attention on fused attention: the same API and results in less memory."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from ..seams.keras.attention import (
    CustomAttention,
    compute_attention_mask,
    has_plain_projections,
    has_window,
    score_scale,
    wants_flash,
)
from .backend_attention import attention, has_flash
from .backend_scan import Tensor, matmul_over_time


@keras.saving.register_keras_serializable(package="keras_recompute")
class MultiHeadAttention(CustomAttention):
    """``keras.layers.MultiHeadAttention`` without the memory of attention probabilities.

    They are recomputed in the backward pass, in tiles.

    Arguments, weights and results are Keras's. Queries are ``(batch, T, features)``, keys and
    values ``(batch, S, features)``, with T and S fixed. Keras's own computation is used where the
    probabilities are returned (``return_attention_scores``), where they are dropped out in
    training, and where attention runs over other axes than one of fixed length.

    Examples:
        >>> attention = kr.MultiHeadAttention(num_heads=2, key_dim=4)
        >>> x = keras.random.normal((1, 16, 8))
        >>> tuple(attention(x, x, use_causal_mask=True).shape)
        (1, 16, 8)
    """

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Attend from ``query`` to ``key``, or ``value``. See keras.layers.MultiHeadAttention."""
        if not self._is_self_attention(query, value, key) or any(
            m is not None for m in (query_mask, value_mask, key_mask)
        ):
            return super().call(
                query,
                value,
                key,
                query_mask,
                value_mask,
                key_mask,
                attention_mask,
                return_attention_scores,
                training,
                use_causal_mask,
            )
        skips = (
            use_causal_mask
            and attention_mask is None
            and not has_window(self)
            and self._fuses(training, return_attention_scores)
        )
        mask = compute_attention_mask(
            self, query, value, mask=attention_mask, is_causal=use_causal_mask and not skips
        )
        query, key, value = self._projected_at_once(query)
        if skips:
            out = attention(query, key, value, None, scale=score_scale(self), is_causal=True)
            scores = None
        else:
            out, scores = self.attend(query, key, value, mask, training, return_attention_scores)
        out = self.output_dense(out)
        return (out, scores) if return_attention_scores else out

    def _is_self_attention(self, query: Tensor, value: Tensor, key: Tensor | None) -> bool:
        """Whether one product can project queries, keys and values."""
        return (
            query is value
            and (key is None or key is value)
            and len(query.shape) == 3
            and query.shape[1] is not None
            and has_plain_projections(self)
            and self.quantization_mode is None
        )

    def _projected_at_once(self, inputs: Tensor) -> list[Tensor]:
        """Return queries, keys and values ``(batch, T, heads, size)`` from a single product."""
        # One wide product runs faster than three narrow ones.
        layers = [self.query_dense, self.key_dense, self.value_dense]
        dtype = self.compute_dtype
        inputs = ops.cast(inputs, dtype)
        kernels = [ops.cast(layer.kernel, dtype) for layer in layers]
        matrices = [ops.reshape(kernel, [kernel.shape[0], -1]) for kernel in kernels]
        product = matmul_over_time(inputs, ops.concatenate(matrices, axis=-1))
        if self.use_bias:
            biases = [ops.reshape(ops.cast(layer.bias, dtype), [-1]) for layer in layers]
            product += ops.concatenate(biases, axis=0)
        parts, begin = [], 0
        for kernel in kernels:
            _, heads, size = kernel.shape
            part = product[..., begin : begin + heads * size]
            parts.append(ops.reshape(part, [-1, inputs.shape[1], heads, size]))
            begin += heads * size
        return parts

    def _fuses(self, training: Any, with_scores: bool) -> bool:
        """Whether the probabilities are neither returned nor dropped out, and ours to compute."""
        if with_scores or wants_flash(self) or has_flash(self.compute_dtype):
            return False
        return self.dropout == 0 or training is False

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        training: Any,
        with_scores: bool,
        **options: Any,
    ) -> Any:
        """Attend with projections ``(batch, length, heads, size)``, called by Keras's layer.

        See keras.layers.MultiHeadAttention.
        """
        fuses = (
            self._fuses(training, with_scores)
            and len(query.shape) == 4
            and None not in (query.shape[1], key.shape[1])
        )
        if options or not fuses:
            return super().attend(query, key, value, mask, training, with_scores, **options)
        if mask is not None:
            mask = ops.cast(mask, "bool")
            # The axis of heads, and that of the batch, may be missing.
            while len(mask.shape) < 4:
                mask = ops.expand_dims(mask, -3)
        return attention(query, key, value, mask, scale=score_scale(self)), None
