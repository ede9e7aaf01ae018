"""Microbatches of a model without stages, in the loop of one program."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("graphcore_names")

STEPS, BATCH, SIZE = 4, 2, 8


def images(steps_per_execution):
    from tensorflow.python import ipu

    settings = ipu.config.IPUConfig()
    settings.auto_select_ipus = 1
    settings.configure_ipu_system()
    tf.keras.utils.set_random_seed(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        x = inputs = tf.keras.Input((SIZE, SIZE, 3), batch_size=BATCH)
        for filters in (4, 5):
            x = tf.keras.layers.Conv2D(filters, 3, activation="relu")(x)
            x = tf.keras.layers.BatchNormalization()(x)
        x = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(x))
        model = tf.keras.Model(inputs, x)
        model.compile(
            tf.keras.optimizers.SGD(1e-3),
            "mse",
            metrics=["mae"],
            steps_per_execution=steps_per_execution,
        )
    return model


def operations(graph_def):
    nodes = [
        *graph_def.node,
        *(node for function in graph_def.library.function for node in function.node_def),
    ]
    return {node.op for node in nodes}


def test_gradients_of_convolutions_are_written_for_a_loop():
    """As TensorFlow writes them, XLA:CPU is fast outside of loops alone: 827 ms a step, not 86."""
    model = images(STEPS)
    signature = model.feed_signature(
        (tf.TensorSpec((BATCH, SIZE, SIZE, 3)), tf.TensorSpec((BATCH, 1)))
    )
    found = operations(model.execution.get_concrete_function(signature).graph.as_graph_def())
    assert "XlaConvV2" in found
    assert not {kind for kind in found if kind.startswith("Conv2DBackprop")}


@pytest.mark.long
def test_steps_of_one_program_train_as_programs_of_one_step():
    x = np.random.default_rng(0).standard_normal((STEPS * BATCH, SIZE, SIZE, 3)).astype("float32")
    y = x.mean((1, 2, 3), keepdims=False)[:, None]
    together, apart = images(STEPS), images(1)
    found, wanted = (
        m.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        for m in (together, apart)
    )
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    for a, b, v in zip(together.get_weights(), apart.get_weights(), apart.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, err_msg=v.path)
