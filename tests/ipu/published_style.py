"""A script for IPUs in the style of the published example; it does not know this project.

A long sequence in sections: each slices the input by a Lambda, starts from the state of the one
before, and contributes its last output only. So there are as many predictions as sections, and the
loss broadcasts them against the targets. Between sections is a RecomputationCheckpoint.
"""

import argparse

import ipu_tensorflow_addons.keras.layers as ipu_layers
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu


def build(args):
    inputs = tf.keras.layers.Input(shape=(args.seq_len, args.features))
    # A pipeline is needed even if there is only one device.
    with tf.keras.ipu.PipelineStage(0):
        lstm = ipu_layers.PopnnLSTM(args.units, return_state=True)
        outputs, state = [], None
        for i in range(args.checkpoints + 1):
            bounds = {
                name: (i + n) * args.seq_len // (args.checkpoints + 1)
                for n, name in enumerate(("begin", "end"))
            }
            section = tf.keras.layers.Lambda(
                lambda x, begin=0, end=0: x[:, begin:end, :], arguments=bounds
            )(inputs)
            output, h, c = lstm(section, initial_state=state)
            if i < args.checkpoints:
                h, c = ipu_layers.RecomputationCheckpoint()([h, c])
            state = (h, c)
            outputs.append(output)
        x = tf.keras.layers.Concatenate(axis=1)(outputs) if args.checkpoints else outputs[0]
    with tf.keras.ipu.PipelineStage(1):
        x = tf.keras.layers.Dense(1)(x)
    return tf.keras.Model(inputs=inputs, outputs=x)


def train(args):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = not args.disable_recomputation
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = build(args)
        model.compile(tf.keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=4)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Sequential,
            recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        features = (
            np.random.RandomState(0)
            .randn(4 * args.batch_size, args.seq_len, args.features)
            .astype(np.float32)
        )
        targets = np.full(
            (len(features), args.seq_len), 0.2, np.float32
        )  # against one prediction per section
        dataset = tf.data.Dataset.from_tensor_slices((features, targets)).batch(
            args.batch_size, drop_remainder=True
        )
        return model, model.fit(dataset, epochs=args.epochs, shuffle=False)


def parse(argv=None):
    parser = argparse.ArgumentParser()
    for name, default in (
        ("seq-len", 16),
        ("checkpoints", 3),
        ("units", 5),
        ("features", 6),
        ("batch-size", 4),
        ("epochs", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--disable-recomputation", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse())
