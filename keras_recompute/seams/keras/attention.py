"""Private parts of Keras's multi-head attention: its mask, its scale, and its core computation."""

from __future__ import annotations

from typing import Any

import keras


class CustomAttention(keras.layers.MultiHeadAttention):
    """Keras's layer with a replaceable core, ``attend``, between the projections."""

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
        """Return results, and attention probabilities if ``with_scores``, else None.

        Projections are ``(batch, length, heads, size)``. ``options`` holds arguments that newer
        releases add, such as ``use_causal_mask`` in Keras 3.15.
        """
        return super()._compute_attention(query, key, value, mask, training, with_scores, **options)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        return_attention_scores: bool = False,
        **options: Any,
    ) -> Any:
        return self.attend(
            query, key, value, attention_mask, training, return_attention_scores, **options
        )


def compute_attention_mask(
    layer: Any, query: Any, value: Any, *, mask: Any, is_causal: bool
) -> Any:
    """Return the mask that Keras's ``layer`` applies, with input masks and causality; or None."""
    return layer._compute_attention_mask(
        query, value, attention_mask=mask, use_causal_mask=is_causal
    )


def score_scale(layer: Any) -> float:
    """Return the factor by which Keras's ``layer`` multiplies its scores."""
    return float(layer._inverse_sqrt_key_dim)


def has_plain_projections(layer: Any) -> bool:
    """Whether ``layer`` has no gate and no activity regularizer. Keras before 3.14 has no gate."""
    return not getattr(layer, "_use_gate", False) and layer._activity_regularizer is None


def has_window(layer: Any) -> bool:
    """Whether queries of ``layer`` see only keys near by. Keras before 3.15 has no such option."""
    return getattr(layer, "_sliding_window", None) is not None


def wants_flash(layer: Any) -> bool:
    """Whether ``layer`` was asked for flash attention, by its argument or for all layers."""
    return bool(layer._flash_attention)
