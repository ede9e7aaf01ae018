"""A model with checkpoints trains to the same numbers as its plain twin: outputs, gradients, state,
losses, weights.
"""

from __future__ import annotations

from functools import lru_cache

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.models.classes.model import Model
from tests.oracle import assert_all_close, assert_same_training, in_mode, losses_of_fit

from ..networks import (
    FEATURES,
    LENGTH,
    NETWORKS,
    SEQUENCES,
    dense_chain,
    mark,
    masked,
    numbers,
    recurrent,
    shared_dense,
    skips,
    with_dropout,
)
from ..same_training import assert_agree, model_pair, training_pass

WITH_JIT = ["recurrent", "uneven", "skips", "dropout", "batch norm"]
EAGER = ["recurrent", "dense chain", "masked", "several"]
# Variants of the recurrent network.
LONG = list(NETWORKS)[list(NETWORKS).index("recurrent") + 1 : list(NETWORKS).index("dense chain")]


@lru_cache(maxsize=None)
def plain_pass(name, mode="graph"):
    return training_pass(model_pair(NETWORKS[name].build)[1], NETWORKS[name].arrays, mode=mode)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(
            pytest.param(name, "graph", marks=pytest.mark.long if name in LONG else ())
            for name in NETWORKS
        ),
        *(
            pytest.param(name, "jit", marks=() if name == WITH_JIT[0] else pytest.mark.long)
            for name in WITH_JIT
        ),
        *((name, "eager") for name in EAGER[:2]),
        *(
            pytest.param(name, "eager", marks=pytest.mark.long(every_case=True))
            for name in EAGER[2:]
        ),
    ],
)
def test_outputs_gradients_and_state(name, mode):
    network = NETWORKS[name]
    ours, _ = model_pair(network.build)
    assert ours.plan.recomputes, "this model recomputes nothing: the test would prove nothing"
    # Under jit the random algorithms of the backends differ, so both are compiled.
    expected = plain_pass(
        name, mode if name in ("dropout", "recurrent dropout of inputs") else "graph"
    )
    assert_agree(training_pass(ours, network.arrays, mode=mode), expected)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in NETWORKS],
)
def test_inference_is_the_plain_model_s(name):
    network = NETWORKS[name]
    ours, plain = model_pair(network.build)
    arrays = network.arrays if len(network.arrays) > 1 else network.arrays[0]
    for a, b in zip(
        keras.tree.flatten(ours(arrays)), keras.tree.flatten(plain(arrays)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "compile_options"),
    [
        pytest.param("recurrent", {"jit_compile": True}, marks=pytest.mark.long),
        pytest.param("recurrent", {"jit_compile": False}, marks=pytest.mark.long),
        pytest.param("recurrent", {"run_eagerly": True}, marks=pytest.mark.long),
        pytest.param("masked", {"jit_compile": False}, marks=pytest.mark.long),
        pytest.param("masked", {"run_eagerly": True}, marks=pytest.mark.long),
        pytest.param("batch norm", {"jit_compile": False}, marks=pytest.mark.long),
        pytest.param(
            "shared dense", {"jit_compile": True, "steps_per_execution": 2}, marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_fit(name, compile_options):
    """Losses of three epochs and the weights after them; without jit the last batch of each epoch
    is a smaller one.
    """
    network = NETWORKS[name]
    arrays = [np.concatenate([a, a[::-1], a])[:9] for a in network.arrays]
    losses, weights = [], []
    for model in model_pair(network.build):
        target = np.cos(np.arange(9 * np.prod(model.output_shape[1:]))).reshape(
            9, *model.output_shape[1:]
        )
        # With Adam, Keras squares the rows of an embedding's sparse gradient one by one; ours is a
        # sum already.
        optimizer = keras.optimizers.SGD(0.3) if name == "masked" else keras.optimizers.Adam(0.05)
        model.compile(optimizer, "mse", metrics=["mae"], **compile_options)
        batch_size = 3 if compile_options.get("jit_compile") else 4
        history = model.fit(
            arrays[0], target, batch_size=batch_size, epochs=3, shuffle=False, verbose=0
        )
        losses.append([*history.history["loss"], *history.history["mae"]])
        weights.append(model.get_weights())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[1][0] != pytest.approx(losses[1][2], rel=1e-3), (
        "nothing was learnt: the test would prove nothing"
    )
    assert_all_close(*weights, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "mode"), [("mixed_bfloat16", "graph"), ("mixed_float16", "jit")]
)
def test_mixed_precision(policy, mode):
    tolerance = 2e-2 if policy == "mixed_float16" else 8e-2
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        ours, plain = model_pair(dense_chain)
        assert ours.layers[1].compute_dtype == policy.removeprefix("mixed_")
        assert_agree(
            training_pass(ours, NETWORKS["dense chain"].arrays, mode=mode),
            training_pass(plain, NETWORKS["dense chain"].arrays, mode="graph"),
            tolerance,
        )
        ours, plain = model_pair(recurrent)
        assert_agree(
            training_pass(ours, SEQUENCES, mode=mode),
            training_pass(plain, SEQUENCES, mode="graph"),
            tolerance,
        )
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.long
def test_loss_scaling_of_mixed_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        losses = [
            losses_of_fit(model, numbers(8, FEATURES), np.ones((8, 1)), batch_size=4, epochs=2)
            for model in model_pair(dense_chain)
        ]
        np.testing.assert_allclose(*losses, rtol=1e-2)
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_the_dropout_masks_of_forward_and_backward_are_the_same(mode):
    """Where an output is zero because of the last mask, so is the gradient of what the mask hid,
    and nowhere else.
    """
    inputs = keras.Input((64,))
    x = keras.layers.Dropout(0.5, seed=3)(inputs * 1.0)
    x = mark(x)
    model = Model(inputs, keras.layers.Activation("linear")(x))
    assert model.plan.recomputes

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
        return y, tape.gradient(y, x)

    y, gradient = in_mode(mode, run)(tf.ones((8, 64)))
    np.testing.assert_array_equal(y, gradient)
    assert 0.3 < (y.numpy() == 0).mean() < 0.7


@pytest.mark.parametrize("mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.long)])
def test_moving_statistics_move_once(mode):
    ours, plain = model_pair(NETWORKS["batch norm"].build)
    for _ in range(2):
        training_pass(ours, NETWORKS["batch norm"].arrays, mode=mode)
        training_pass(plain, NETWORKS["batch norm"].arrays, mode="eager")
    assert_all_close(
        ours.non_trainable_variables, plain.non_trainable_variables, rtol=1e-5, atol=1e-6
    )


def test_the_model_s_training_wins_over_a_layer_s_as_in_keras():

    def build(Model):
        inputs = keras.Input((32,))
        x = keras.layers.Dropout(0.5, seed=1)(keras.layers.Dense(32)(inputs), training=False)
        x = mark(x)
        return Model(inputs, keras.layers.Dense(3)(x))

    ours, plain = model_pair(build)
    assert_agree(
        training_pass(ours, (numbers(4, 32),), mode="graph"),
        training_pass(plain, (numbers(4, 32),), mode="graph"),
    )


def test_a_frozen_layer_has_no_gradient_and_keeps_its_weights():
    def build(Model):
        model = dense_chain(Model)
        model.layers[1].trainable = False
        return model

    ours, plain = model_pair(build)
    before = ours.layers[1].get_weights()
    assert_same_training(ours, plain, numbers(4, FEATURES), np.ones((4, 1)))
    np.testing.assert_array_equal(ours.layers[1].get_weights()[0], before[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "mode"),
    [(dense_chain, "jit"), (shared_dense, "eager"), (shared_dense, "graph")],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_regularisers_and_added_losses_count_once(build, mode):
    ours, plain = model_pair(
        lambda Model: build(Model, kernel_regularizer="l2", activity_regularizer="l1")
    )
    x, y = numbers(4, FEATURES), np.ones((4, 1))
    assert_same_training(ours, plain, x, y, epochs=2, mode=mode)


@pytest.mark.long
def test_sample_weights_and_class_outputs():
    def head(x):
        return keras.layers.Dense(3, activation="softmax")(keras.layers.GlobalAveragePooling1D()(x))

    assert_same_training(
        *model_pair(lambda Model: recurrent(Model, last_only=True, head=head)),
        SEQUENCES[0],
        np.array([0, 1, 2, 1]),
        sample_weight=np.array([1.0, 0.0, 2.0, 1.0]),
        loss="sparse_categorical_crossentropy",
        epochs=2,
    )


@pytest.mark.long
def test_evaluate_and_predict():
    ours, plain = model_pair(NETWORKS["recurrent"].build)
    x, y = SEQUENCES[0], numbers(4, LENGTH, 2)
    for model in (ours, plain):
        model.compile("sgd", "mse")
    np.testing.assert_allclose(ours.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-6)
    assert ours.evaluate(x, y, verbose=0) == pytest.approx(
        plain.evaluate(x, y, verbose=0), rel=1e-6
    )


def test_a_custom_training_loop():
    ours, plain = model_pair(skips)
    weights = []
    for model in (ours, plain):
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function(autograph=False)
        def step(x, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables
            )

        optimizer.build(model.trainable_variables)
        for seed in range(3):
            step(tf.constant(numbers(5, 4, seed=seed)))
        weights.append(model.get_weights())
    assert_all_close(*weights, atol=1e-6)


@pytest.mark.long
def test_with_dropout_and_masks_a_training_pass_leaves_no_trace():
    """After training, an inference pass and a training pass of another batch size work as
    before.
    """
    for build, arrays in (
        (masked, NETWORKS["masked"].arrays),
        (with_dropout, NETWORKS["dropout"].arrays),
    ):
        ours, plain = model_pair(build)
        training_pass(ours, arrays, mode="eager")
        training_pass(ours, [a[:1] for a in arrays], mode="eager")
        np.testing.assert_allclose(ours(arrays[0]), plain(arrays[0]), atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_fit_traces_the_training_step_once(jit, monkeypatch):
    """Plain Keras traces it twice, because the optimizer makes its variables in the first trace."""
    inputs = keras.Input((4,))
    model = kr.checkpointed(
        keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(3)(inputs))), every=1
    )
    model.compile("adam", "mse", jit_compile=jit)
    losses = []
    compute_loss = model.compute_loss

    def counted(*args, **kwargs):
        losses.append(compute_loss(*args, **kwargs))
        return losses[-1]

    monkeypatch.setattr(model, "compute_loss", counted)
    model.fit(np.ones((2, 4)), np.ones((2, 1)), verbose=0)
    assert len(losses) == 1


def test_an_optimizer_of_some_weights_is_left_to_the_train_step_of_the_user():
    class Head(kr.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x) - y) ** 2)
            variables = self.layers[-1].trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    inputs = keras.Input((4,))
    hidden = kr.RecomputationCheckpoint()(keras.layers.Dense(3)(inputs))
    model = Head(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam")
    model.fit(np.ones((2, 4)), np.ones((2, 1)), verbose=0)
    # The number of steps, the learning rate, and two momenta of a kernel and of a bias.
    assert len(model.optimizer.variables) == 2 + 2 * 2


def test_autograph_converts_the_training_step():
    """As in a ``tf.function`` of the user's own; where it cannot, it prints a warning."""
    for step in (kr.Model.train_step, kr.Model._held_back):
        assert tf.autograph.to_graph(step).__name__.endswith(step.__name__)
