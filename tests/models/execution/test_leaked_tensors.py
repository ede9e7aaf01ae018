"""A layer leaves a tensor in an attribute during its call: fine as long as nobody outside of its
section uses it.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError
from tests.oracle import losses_of_fit

from ..networks import numbers

L = keras.layers
X = numbers(4, 6)
# Called eagerly, the list gets a tensor in the first step only.
pytestmark = pytest.mark.filterwarnings("ignore:.*changes 'all' of 'leaves'")


class Leaves(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.last, self.all = L.Dense(6, "tanh"), None, []

    def call(self, x):
        self.last = self.inner(x)
        self.all.append(self.last)
        return self.last


class Reads(L.Layer):
    def __init__(self, other, **kwargs):
        super().__init__(**kwargs)
        self.other = other

    def call(self, x):
        return x * self.other.last


def build(*, reads: bool = False) -> tuple[keras.Model, Leaves]:
    keras.utils.set_random_seed(1)
    leaves = Leaves(name="leaves")
    inputs = keras.Input((6,))
    x = leaves(L.Dense(6, "tanh", name="first")(inputs))
    for n in range(2):
        x = L.Dense(6, "tanh", name=f"between_{n}")(x)
    x = Reads(leaves, name="reads")(x) if reads else x
    return keras.Model(inputs, L.Dense(2, name="end")(x), name="mine"), leaves


def fitted(model: keras.Model, mode: str) -> list[float]:
    return losses_of_fit(model, X, X[:, :2], mode=mode, epochs=2)


OURS = {"at": "between_0", "layers": "leaves"}


@pytest.mark.parametrize(
    "mode", ["graph", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("eager", "jit"))]
)
@pytest.mark.parametrize("by", OURS)
def test_what_nobody_uses_is_no_mistake(by, mode):
    """But who uses it then is told the layer, the attribute and the tensor, however it is used."""
    model, leaves = build()
    expected = fitted(build()[0], mode)
    np.testing.assert_allclose(
        fitted(kr.checkpointed(model, **{by: OURS[by]}), mode), expected, rtol=1e-5
    )
    message = (
        r"'leaves' stored the tensor '.*Tanh.*', float32\(.*6\), in its attribute '{}'. .* is "
        r"recomputed, .* Return it"
    )
    for use in (
        tf.reduce_sum,
        lambda t: t * 2.0,
        lambda t: X + t,
        lambda t: t.shape,
        np.asarray,
        lambda t: t[0],
    ):
        with pytest.raises(UnsupportedError, match=message.format("last")):
            use(leaves.last)
    with pytest.raises(UnsupportedError, match=message.format("all")):
        tf.reduce_sum(leaves.all[-1])
    assert not hasattr(leaves.last, "numpy")
    model(X)
    assert leaves.last.shape == (4, 6), (
        "a call outside of training leaves what it computes, as ever"
    )


@pytest.mark.parametrize("mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.long)])
@pytest.mark.parametrize("by", OURS)
def test_a_layer_behind_the_section_cannot_use_it(by, mode):
    ours = kr.checkpointed(build(reads=True)[0], **{by: OURS[by]})
    with pytest.raises(
        UnsupportedError, match=r"'leaves' stored the tensor .* in its attribute 'last'"
    ):
        fitted(ours, mode)


@pytest.mark.long
def test_a_layer_of_the_same_section_can_use_it():
    losses = [
        fitted(model, "graph")
        for model in (build(reads=True)[0], kr.checkpointed(build(reads=True)[0], at="reads"))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
