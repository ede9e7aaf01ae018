"""A program of a worker that trains on data in several forms: shared by file, by element, and not
the same for all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.distribute import join
from keras_recompute.errors import InvalidArgumentError

POLICIES = tf.data.experimental.AutoShardPolicy


def model_in(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        x = inputs = keras.Input((1,))
        for _ in range(2):
            x = kr.RecomputationCheckpoint()(
                keras.layers.BatchNormalization()(keras.layers.Dense(4)(x))
            )
        model = kr.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(
            "sgd",
            "mse",
            metrics=[keras.metrics.MeanMetricWrapper(lambda y, _: y, name="mean")],
            jit_compile=True,
        )
    return model


def batches(numbers, policy):
    data = numbers.map(
        lambda n: (tf.cast(n, tf.float32)[None], tf.cast(n, tf.float32)[None])
    ).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def main(folder: str) -> None:
    with join(wait_seconds=120) as strategy:
        number = strategy.cluster_resolver.task_id
        files = sorted(map(str, Path(folder).iterdir()))
        lines = (
            tf.data.Dataset.from_tensor_slices(files)
            .interleave(tf.data.TextLineDataset)
            .map(tf.strings.to_number)
        )
        for name, data in {
            "by file": batches(lines, POLICIES.FILE),
            "by element": batches(tf.data.Dataset.range(24), POLICIES.DATA),
        }.items():
            history = model_in(strategy).fit(data, verbose=0).history
            print(
                json.dumps({"case": name, "mean": history["mean"][0], "loss": history["loss"][0]}),
                flush=True,
            )
        try:
            model_in(strategy).fit(
                batches(tf.data.Dataset.range(8 if number else 24), POLICIES.OFF), verbose=0
            )
        except InvalidArgumentError as error:
            print(json.dumps({"case": "not the same", "said": str(error)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
