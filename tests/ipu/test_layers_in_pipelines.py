"""Recomputation of Graphcore's layers inside a pipeline does not change their results."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

BATCH, LENGTH = 2, 6

pytestmark = [pytest.mark.usefixtures("graphcore_names"), pytest.mark.long]


def network(layers, ids):
    """Return the output of the first stage, which has every layer.

    One recurrent layer is in two sections, and one has a state of its own.
    """
    x = layers.Embedding(12, 4, serialization_factor=2)(ids)
    x = layers.PopnnGRU(
        4, "relu", "hard_sigmoid", return_sequences=True, dropout=0.25, dropout_seed=(1, 2)
    )(x)
    x = layers.GroupNormalization(2, gamma_initializer="ones", beta_initializer="zeros")(x)
    x = layers.RecomputationCheckpoint()(x)
    x = layers.LayerNormalization()(layers.Dropout(0.25, seed=(3, 4))(x))
    continued = layers.PopnnLSTM(4, return_sequences=True, return_state=True)
    first, *state = continued(x)
    state = layers.RecomputationCheckpoint()(state)
    x, *_ = continued(first, initial_state=state)
    x = layers.PopnnLSTM(4, stateful=True, return_sequences=True)(x)
    return layers.SerialDense(4, 2, "kernel_rows")(x)


def losses(*, recompute: bool) -> list[float]:
    import ipu_tensorflow_addons.keras.layers as layers
    from tensorflow.python import ipu

    settings = ipu.config.IPUConfig()
    settings.allow_recompute = recompute
    settings.configure_ipu_system()
    keras.utils.set_random_seed(5)
    with ipu.ipu_strategy.IPUStrategy().scope():
        ids = keras.Input((LENGTH,), batch_size=BATCH, dtype="int32")
        with tf.keras.ipu.PipelineStage(0):
            x = network(layers, ids)
        with tf.keras.ipu.PipelineStage(1):
            x = keras.layers.Dense(1)(x)
        model = keras.Model(ids, x)
        model.compile(keras.optimizers.SGD(0.3), "mse", steps_per_execution=2)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=2,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Sequential,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        numbers = np.random.default_rng(0)
        x, y = (
            numbers.integers(0, 12, (8 * BATCH, LENGTH)),
            numbers.standard_normal((8 * BATCH, LENGTH, 1)).astype("float32"),
        )
        model.fit(x.astype("int32"), y, batch_size=BATCH, shuffle=False, verbose=0)
    return model.training_record.losses


def test_recomputation_changes_nothing():
    plain = losses(recompute=False)
    assert len(plain) == 4
    assert len(set(plain)) == 4
    np.testing.assert_allclose(losses(recompute=True), plain, rtol=1e-5)
