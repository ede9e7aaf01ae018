"""The example as Graphcore published it: Lambda slices, last outputs only, a loss that broadcasts. It must run as it is."""

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu import install, uninstall


@pytest.fixture(autouse=True)
def _names():
    install()
    yield
    from tensorflow.python import ipu

    ipu.config.reset_ipu_configuration()
    uninstall()


def train(checkpoints, *, recompute):
    import ipu_tensorflow_addons.keras.layers as ipu_layers
    from tensorflow.python import ipu

    seq_len = 16
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = recompute
    config.configure_ipu_system()
    tf.keras.utils.set_random_seed(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = tf.keras.layers.Input(shape=(seq_len, 6))
        with tf.keras.ipu.PipelineStage(0):
            lstm = ipu_layers.PopnnLSTM(5, return_state=True)
            outputs, state = [], None
            for i in range(checkpoints + 1):
                bounds = {"b": i * seq_len // (checkpoints + 1), "e": (i + 1) * seq_len // (checkpoints + 1)}
                piece = tf.keras.layers.Lambda(lambda x, b=0, e=0: x[:, b:e, :], arguments=bounds)(inputs)
                output, h, c = lstm(piece, initial_state=state)
                if i != checkpoints:
                    h, c = ipu_layers.RecomputationCheckpoint()([h, c])
                state = (h, c)
                outputs.append(output)
            x = tf.keras.layers.Concatenate(axis=1)(outputs) if checkpoints else outputs[0]
        with tf.keras.ipu.PipelineStage(1):
            x = tf.keras.layers.Dense(1)(x)
        model = tf.keras.Model(inputs=inputs, outputs=x)
        model.compile(tf.keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=4)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Sequential,
            recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        features = np.random.RandomState(0).randn(16, seq_len, 6).astype("float32")
        targets = np.full((16, seq_len), 0.2, "float32")  # against predictions of one value each
        dataset = tf.data.Dataset.from_tensor_slices((features, targets)).batch(4, drop_remainder=True)
        history = model.fit(dataset, epochs=3, verbose=0, shuffle=False)
    return history.history["loss"], model


@pytest.mark.parametrize("checkpoints", [0, 3])
def test_recomputation_changes_nothing(checkpoints):
    plain, _ = train(checkpoints, recompute=False)
    recomputed, _ = train(checkpoints, recompute=True)
    assert recomputed == pytest.approx(plain, rel=1e-6)


def test_the_sections_are_recomputed_one_by_one():
    """Lambdas cannot be seen to be equal, so nothing is outlined: four sections of stage 0, its concatenation, stage 1."""
    _, model = train(3, recompute=True)
    first, last = ([name for name, _ in plan.named_steps] for plan in model.pipeline.stages.plans)
    assert first[:4] == ["section-0", "section-1", "section-2", "section-3"]
    assert last == [""]
