"""The gradient of an extremum finds its element by equality, so both are of one computation: a
compiler's may differ.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import assert_all_close, loss_and_gradients, mean_square, numbers

# Of a policy that asks for the extremum alone, which is not saved then.
pytestmark = pytest.mark.filterwarnings(
    "ignore:policy .* matches no value:keras_recompute.errors.RecomputeWarning"
)
IMAGE, KERNEL, LAST = (
    numbers(4, 16, 16, 8),
    numbers(3, 3, 8, 16, seed=1) / 4,
    numbers(16, 4, seed=2),
)


def network(x, kernel, last, name=None):
    """A gelu behind a convolution is computed anew where it is read, by other code than before."""
    y = tf.reduce_max(tf.nn.gelu(tf.nn.conv2d(x, kernel, 1, "SAME")), axis=[1, 2])
    return tf.tanh((kr.checkpoint_name(y, name) if name else y) @ last)


def gradients(function, mode):
    return loss_and_gradients(function, IMAGE, KERNEL, LAST, mode=mode, of_inputs=True)


@pytest.mark.parametrize(
    "mode", ["graph", pytest.param("jit", marks=pytest.mark.long(every_case=True))]
)
@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (kr.policies.save_nothing, None),
        (kr.policies.save_names("largest"), "largest"),
        (lambda value: value.op.type == "Max", None),
        (lambda value: value.op.type == "Conv2D", None),
    ],
    ids=["save nothing", "save its name", "save it", "save the product"],
)
def test_the_gradient_goes_to_the_largest_element(policy, name, mode):
    ours = kr.checkpoint(lambda *given: network(*given, name=name), policy=policy)
    assert_all_close(gradients(ours, mode), gradients(network, "graph"), rtol=1e-4, atol=1e-4)


def test_an_extremum_is_saved_with_its_elements_alone():
    def kept(policy):
        rows = kr.saved_residuals(kr.checkpoint(network, policy=policy), IMAGE, KERNEL, LAST)
        return [row.shape for row in rows if row.kind not in ("argument", "input")]

    assert (4, 16) not in kept(lambda value: value.op.type == "Max")
    assert (4, 16) in kept(lambda value: value.op.type == "Max" or value.shape == (4, 16, 16, 16))


@pytest.mark.long
def test_in_a_model_whose_section_ends_with_one():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16, 16, 8))
    x = keras.layers.Conv2D(16, 3, padding="same", activation="gelu")(inputs)
    x = keras.layers.Conv2D(16, 3, padding="same", activation="gelu")(x)
    x = keras.layers.GlobalMaxPooling2D(name="largest")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dense(8, activation="gelu")(x)))
    images = np.random.default_rng(0).normal(size=(8, 16, 16, 8)).astype("float32")
    found = []
    for each, mode in ((model, "graph"), (kr.checkpointed(model, at=["largest"]), "jit")):
        found.append(loss_and_gradients(each, images, mode=mode, loss=mean_square))
    assert_all_close(*found, rtol=1e-4, atol=1e-5)
