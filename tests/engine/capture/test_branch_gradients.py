"""Gradients of tables whose rows are looked up in a branch: dense, with a warning."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from tests.oracle import loss_and_gradients

from .test_gradient_structure import IDS, MODES, TABLE, X


def looked_up_in_a_branch(x):
    """As many rows on one side as on the other."""
    rows = IDS[0]
    is_large = tf.reduce_sum(x) > 0
    return tf.cond(
        is_large, lambda: tf.gather(TABLE, rows) * x, lambda: tf.sin(tf.gather(TABLE, rows))
    )


def looked_up_in_a_case(x):
    rows, number = IDS[0], tf.cast(x[0, 0], tf.int32)
    return tf.switch_case(number, [lambda: tf.gather(TABLE, rows) * x, lambda: x])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [looked_up_in_a_branch, looked_up_in_a_case])
def test_rows_looked_up_in_a_branch_give_a_dense_gradient_and_say_so(function, mode):
    """Slices of sides that gather different numbers of rows cannot be added and differentiated."""

    def gradient(function):
        return loss_and_gradients(function, X, mode=mode, weights=[TABLE])[1]

    plain = gradient(function)
    assert isinstance(plain, tf.IndexedSlices)
    with pytest.warns(
        RecomputeWarning, match="gradient of 'table:0' is dense, and tf.IndexedSlices without"
    ) as said:
        ours = gradient(kr.checkpoint(function))
    assert len([w for w in said if "is dense" in str(w.message)]) == 1
    np.testing.assert_allclose(ours, tf.convert_to_tensor(plain), rtol=1e-6)
