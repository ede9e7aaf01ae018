"""A convolutional model in two stages: what recomputation and a checkpoint in the middle of the first stage save."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from keras_recompute.liveness import profile

from .pipelines import configure
from .staged import stage

SIZE, CHANNELS, BATCH, MICROBATCHES = 16, 8, 4, 4


pytestmark = pytest.mark.usefixtures("graphcore_names")


def model_of(*, recompute: bool, checkpoint: bool):
    import ipu_tensorflow_addons.keras.layers as ipu_layers
    from tensorflow.python import ipu

    configure(recompute=recompute)
    with ipu.ipu_strategy.IPUStrategy().scope():
        keras.utils.set_random_seed(1)
        inputs = x = keras.Input((SIZE, SIZE, 1), batch_size=BATCH)
        with stage(0):
            for _ in range(3):
                x = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh")(x)
            x = keras.layers.AveragePooling2D(4)(x)
            x = keras.layers.UpSampling2D(4)(ipu_layers.RecomputationCheckpoint()(x) if checkpoint else x)
            for _ in range(3):
                x = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh")(x)
            x = keras.layers.GlobalAveragePooling2D()(x)
        with stage(1):
            x = keras.layers.Dense(2)(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=MICROBATCHES)
        model.set_pipelining_options(
            MICROBATCHES,
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Grouped,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
    return model


def test_the_peak_falls_with_recomputation_and_again_with_a_checkpoint():
    peaks = {}
    for name, recompute, checkpoint in (("kept", False, True), ("recomputed", True, False), ("checkpoint", True, True)):
        model = model_of(recompute=recompute, checkpoint=checkpoint)
        specs = tf.TensorSpec((BATCH, SIZE, SIZE, 1)), tf.TensorSpec((BATCH, 2))
        peaks[name] = profile(model.execution, model.feed_signature(specs), input_feed=["feed"]).peak_bytes
    image = BATCH * SIZE * SIZE * CHANNELS * 4
    # Three microbatches' six convolutions are kept at once, or none of them is.
    assert peaks["recomputed"] <= peaks["kept"] - 2 * 6 * image, peaks
    # Three convolutions are recomputed at a time instead of six.
    assert peaks["checkpoint"] <= peaks["recomputed"] - 2 * image, peaks
