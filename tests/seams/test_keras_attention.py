"""Keras's multi-head attention in parts."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.attention import (
    CustomAttention,
    compute_attention_mask,
    has_plain_projections,
    has_window,
    score_scale,
    wants_flash,
)


class Doubled(CustomAttention):
    def attend(self, query, key, value, mask, training, with_scores, **options):
        self.seen = query.shape, None if mask is None else mask.shape, training, with_scores
        results, scores = super().attend(query, key, value, mask, training, with_scores, **options)
        return 2 * results, scores


@pytest.fixture
def layers():
    """Keras's layer and ours, with the same weights and no biases."""
    found = [kind(3, 4, use_bias=False) for kind in (keras.layers.MultiHeadAttention, Doubled)]
    for layer in found:
        layer.build((2, 5, 6), (2, 5, 6))
    found[1].set_weights(found[0].get_weights())
    return found


def test_attend_stands_between_the_projections(layers):
    plain, doubled = layers
    x = tf.random.normal((2, 5, 6))
    np.testing.assert_allclose(doubled(x, x, training=True), 2 * plain(x, x), rtol=1e-5, atol=1e-6)
    assert doubled.seen[0] == (2, 5, 3, 4)
    assert doubled.seen[2:] == (True, False)


def test_probabilities_are_returned_where_they_are_asked_for(layers):
    x = tf.random.normal((2, 5, 6))
    _, scores = layers[1](x, x, return_attention_scores=True)
    assert scores.shape == (2, 3, 5, 5)


def test_the_mask_is_causal_and_of_the_inputs(layers):
    x = tf.zeros((2, 5, 6))
    assert compute_attention_mask(layers[0], x, x, mask=None, is_causal=False) is None
    causal = compute_attention_mask(layers[0], x, x, mask=None, is_causal=True)
    np.testing.assert_array_equal(tf.broadcast_to(causal, (2, 5, 5))[0], np.tri(5, dtype=bool))
    given = tf.constant(np.eye(5, dtype=bool)[None])
    np.testing.assert_array_equal(
        tf.broadcast_to(
            compute_attention_mask(layers[0], x, x, mask=given, is_causal=False), (1, 5, 5)
        ),
        given,
    )


def test_scores_are_scaled_by_the_size_of_a_head(layers):
    assert score_scale(layers[0]) == 0.5


def test_a_gate_or_a_regularizer_of_results_is_seen():
    assert has_plain_projections(keras.layers.MultiHeadAttention(2, 2))
    assert not has_plain_projections(
        keras.layers.MultiHeadAttention(2, 2, activity_regularizer="l2")
    )
    if "use_gate" in inspect.signature(keras.layers.MultiHeadAttention).parameters:
        assert not has_plain_projections(keras.layers.MultiHeadAttention(2, 2, use_gate=True))


def test_a_window_is_seen():
    assert not has_window(keras.layers.MultiHeadAttention(2, 2))
    if "sliding_window" in inspect.signature(keras.layers.MultiHeadAttention).parameters:
        assert has_window(keras.layers.MultiHeadAttention(2, 2, sliding_window=3))


def test_a_wish_for_flash_attention_is_seen():
    assert not wants_flash(keras.layers.MultiHeadAttention(2, 2))
    assert wants_flash(keras.layers.MultiHeadAttention(2, 2, flash_attention=True))
