"""A planned model says what a step takes, with jit and without; nothing here asserts a time."""

from __future__ import annotations

from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_recompute as kr
from keras_recompute.seams.tensorflow.xla import is_for_xla


class SeesItsCompiler(layers.Layer):
    seen: ClassVar[set[bool]] = set()

    def call(self, x):
        self.seen.add(is_for_xla(tf.compat.v1.get_default_graph()))
        return x


def test_a_step_is_timed_with_jit_and_without_and_leaves_the_model_as_it_was():
    inputs = keras.Input((8,))
    x = SeesItsCompiler()(layers.Dropout(0.5)(layers.BatchNormalization()(layers.Dense(8)(inputs))))
    model = keras.Model(inputs, layers.Dense(1)(x))
    before = [v.numpy() for v in model.variables]
    SeesItsCompiler.seen.clear()
    found = kr.plan(model, prove=False, memory_budget="1GiB", batch_size=4, timed=True)[1]
    assert SeesItsCompiler.seen == {False, True}
    assert 0 < found.jit_seconds < 10
    assert 0 < found.graph_seconds < 10
    assert str(found).endswith(
        f"a step takes {found.jit_seconds:.2g} s with jit, {found.graph_seconds:.2g} s without"
    )
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    untimed = kr.plan(model, prove=False, memory_budget="1GiB", batch_size=4)[1]
    assert (untimed.jit_seconds, untimed.graph_seconds) == (None, None)
    assert "a step takes" not in str(untimed)
