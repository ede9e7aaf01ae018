"""A checkpoint in a stage of convolutions lowers the peak that pva shows.

Source: Graphcore, pipelined training.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

LAYERS, SIZE, CHANNELS = 16, 32, 8

pytestmark = [pytest.mark.usefixtures("graphcore_names"), pytest.mark.long]


def peak_of_training(*, checkpoint: bool) -> tuple[int, list[int]]:
    """Train in two stages on two IPUs; return the peak, and the peak of each IPU.

    The peak is computed as scripts do with pva.
    """
    import ipu_tensorflow_addons.keras.layers as ipu_layers
    import pva
    from tensorflow.python import ipu

    settings, helper = ipu.config.IPUConfig(), ipu.test_utils.ReportHelper()
    helper.set_autoreport_options(settings)
    settings.auto_select_ipus = 2
    settings.allow_recompute = True
    settings.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        x = inputs = tf.keras.Input((SIZE, SIZE, 3), batch_size=1)
        with tf.keras.ipu.PipelineStage(0):
            for number in range(LAYERS):
                if checkpoint and number == LAYERS // 2:
                    x = ipu_layers.RecomputationCheckpoint()(x)
                x = tf.keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh")(x)
        with tf.keras.ipu.PipelineStage(1):
            x = tf.keras.layers.Dense(1)(x)
        model = tf.keras.Model(inputs, x)
        model.compile("sgd", "mse", steps_per_execution=4)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            device_mapping=[0, 1],
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Grouped,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        model.fit(
            np.ones((4, SIZE, SIZE, 3), "float32"),
            np.ones((4, SIZE, SIZE, 1), "float32"),
            batch_size=1,
            verbose=0,
        )
    compilation = pva.openReport(helper.find_report()).compilation
    steps = compilation.livenessProgramSteps
    always_live = sum(tile.memory.alwaysLiveBytes for tile in compilation.tiles)
    by_ipu = [
        sum(tile.memory.alwaysLiveBytes for tile in on.tiles)
        + max(step.notAlwaysLiveMemoryForIpu(k).bytes for step in steps)
        for k, on in enumerate(compilation.ipus)
    ]
    return always_live + max(step.notAlwaysLiveMemory.bytes for step in steps), by_ipu


def test_a_checkpoint_lowers_the_peak_of_its_stage_s_ipu():
    """Half of 16 results are recomputed at a time: 8 images less.

    The stash holds the checkpoint of 3 microbatches.
    """
    plain, plain_by_ipu = peak_of_training(checkpoint=False)
    checkpointed, by_ipu = peak_of_training(checkpoint=True)
    image = SIZE * SIZE * CHANNELS * 4
    assert checkpointed <= plain - 2 * image
    assert by_ipu[0] <= plain_by_ipu[0] - 2 * image
    assert by_ipu[0] > by_ipu[1], "the convolutions are on the first IPU"
