"""Frozen weights: no product is computed for their gradients, and who asks for these gets what
plain Keras gives.

Counted are the matrix products of the compiled training step. Eight dense layers have 8 products
forward, a product for the gradient of each kernel, and one for that of what each layer but the
first reads: 23. With ``every=2`` the first layer of each of three sections is replayed.
"""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from tests.oracle import assert_all_close, gradient_step, in_mode, loss_and_gradients

from ..networks import numbers

L = keras.layers
WIDTH, X = 16, numbers(4, 16)
INSIDE = ("layer_2", "layer_3", "layer_4", "layer_5")


def dense(*frozen: str, lora: bool = False) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = x = keras.Input((WIDTH,))
    for n in range(8):
        x = L.Dense(WIDTH, "tanh", name=f"layer_{n}")(x)
    model = keras.Model(inputs, x)
    for name in frozen:
        model.get_layer(name).trainable = False
    for layer in model.layers[1:] if lora else ():
        layer.enable_lora(2)
    return model


def towers() -> keras.Model:
    """A frozen tower of four layers, and one that is trained, which reads it four times through
    frozen layers.
    """
    inputs = a = b = keras.Input((WIDTH,))
    for n in range(4):
        b = L.Dense(WIDTH, "tanh", trainable=False, name=f"frozen_{n}")(b)
    for n in range(4):
        from_tower = L.Dense(WIDTH, trainable=False, name=f"from_{n}")(b)
        a = L.Add()([L.Dense(WIDTH, "tanh", name=f"trained_{n}")(a), from_tower])
    return keras.Model(inputs, a)


def sequence(*, frozen: bool) -> kr.Model:
    """One loop over equal sections of two layers."""
    inputs = keras.Input((1, WIDTH))
    shared = [
        L.Dense(WIDTH, "tanh", name="shared_0"),
        L.Dense(WIDTH, "tanh", trainable=not frozen, name="shared_1"),
    ]
    x = L.Dense(WIDTH, name="first")(inputs)
    for _ in range(6):
        x = kr.RecomputationCheckpoint()(shared[1](shared[0](x)))
    return kr.Model(inputs, L.Dense(1, name="end")(x))


def products(model: keras.Model) -> int:
    step = tf.function(gradient_step(model), jit_compile=True)
    x = tf.zeros((2, *model.input_shape[1:]))
    return len(re.findall(r" dot\(", step.experimental_get_compiler_ir(x)(stage="optimized_hlo")))


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "plain", "replayed"),
    [
        (dense, 23, 3),
        # Of each frozen kernel the gradient's product less.
        (lambda: dense("layer_3", "layer_4"), 21, 3),
        (lambda: dense(*INSIDE), 19, 3),
        # A layer in front of the first that is trained has no gradient at all: two kernels, and
        # what two layers read.
        (lambda: dense("layer_0", "layer_1"), 19, 2),
        # The kernel is K + A B: one more product forward and two more backward, for A and B. A B is
        # replayed for each layer. The way back ends at A, and waits for the gradient of the data:
        # the first section is like the others.
        (lambda: dense(lora=True), 23 + 8 * 3, 3 + 6 + 1),
        # 12 forward; backward 4 for kernels and 3 for what the trained layers read. Three trained
        # layers are replayed.
        (towers, 19, 3),
    ],
    ids=["nothing", "two", "two sections", "front", "lora", "towers"],
)
def test_frozen_kernels_cost_no_product(build, plain, replayed):
    model = build()
    assert products(model) == plain
    assert products(kr.checkpointed(model, every=2)) == plain + replayed


@pytest.mark.long
def test_frozen_kernels_cost_no_product_in_a_loop():
    """One in the body, and one in the section in front of the loop, which has the first layer as
    well.
    """
    assert products(sequence(frozen=False)) - products(sequence(frozen=True)) == 2


@pytest.mark.parametrize("mode", ["graph", "jit"])
@pytest.mark.parametrize("every", [2, pytest.param(4, marks=pytest.mark.long)])
def test_who_asks_for_the_gradients_of_frozen_weights_gets_them(every, mode):
    """Keras freezes a variable by itself: TensorFlow's, which was made before, is watched all the
    same.
    """
    plain, base = dense(*INSIDE), dense(*INSIDE)
    ours = kr.checkpointed(base, every=every)
    found, expected = (
        loss_and_gradients(model, X, mode=mode, weights=[v.value for v in model.weights])
        for model in (ours, plain)
    )
    assert_all_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_a_variable_that_was_made_frozen_has_a_gradient_if_it_is_watched(mode, watched):
    class Scale(L.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[1:], initializer="ones", trainable=False)

        def call(self, x):
            return x * self.scale

    def gradient(model):
        def step(x):
            with tf.GradientTape() as tape:
                if watched:
                    tape.watch(scale)
                loss = tf.reduce_sum(model(x, training=True) ** 2)
            found = tape.gradient(loss, scale)
            return tf.constant(0.0) if found is None else found

        return in_mode(mode, step)(tf.constant(X))

    inputs = keras.Input((WIDTH,))
    scaling = Scale()
    x = L.Dense(WIDTH, "tanh")(scaling(L.Dense(WIDTH, "tanh")(inputs)))
    model = keras.Model(inputs, L.Dense(WIDTH, "tanh")(L.Dense(WIDTH, "tanh")(x)))
    scale = scaling.scale.value
    expected = gradient(model)
    assert (expected.shape != ()) is watched
    np.testing.assert_allclose(
        gradient(kr.checkpointed(model, every=3)), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.long
def test_a_layer_that_is_trained_again_is_trained():
    models = []
    for ours in (False, True):
        model = dense(*INSIDE)
        model = kr.checkpointed(model, every=2) if ours else model
        for trainable in (False, True, False):
            for name in INSIDE:
                model.get_layer(name).trainable = trainable
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
            model.fit(X, X, epochs=2, verbose=0)
        models.append(model)
    assert_all_close(*(model.get_weights() for model in models), rtol=1e-5, atol=1e-6)
