"""One program per signature: calls find it again, in a graph too."""

from __future__ import annotations

import copy

import numpy as np
import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint

from ..engine_vs_plain import operation_count
from ..frontend.test_checkpoint import X


def test_one_program_per_signature_also_in_a_graph():
    traced = []
    note = (
        traced.append
    )  # not by name of the list: a change of that is a side effect, which is noticed

    def function(x):
        note(x.shape)
        return tf.exp(tf.sin(x))

    section = checkpoint(function)
    for _ in range(3):
        section(X)
        section(X[:3])
    assert [tuple(s) for s in traced] == [(6, 4), (3, 4)]

    @tf.function
    def step(x):
        for _ in range(5):
            x = section(x)
        return x

    concrete = step.get_concrete_function(tf.TensorSpec((6, 4)))
    assert len(traced) == 3, "traced once for five calls"
    assert operation_count(concrete, "Exp") == 5


def test_a_copy_of_an_object_has_programs_of_its_own():
    class Scale:
        factor = 2.0

        def __call__(self, x):
            return tf.exp(tf.sin(x)) * self.factor

    scale = Scale()
    checkpoint(scale)(X)
    twin = copy.deepcopy(scale)
    twin.factor = 3.0
    np.testing.assert_allclose(checkpoint(twin)(X), 1.5 * checkpoint(scale)(X), rtol=1e-6)
