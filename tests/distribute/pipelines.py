"""A program that runs models of Graphcore's names in one process or several and prints what came of
each as a line of JSON.

Alone it takes all microbatches, as a worker of a cluster those of its number: they are dealt in
turn. Either way an update is that of four microbatches, and an execution has two updates.
"""

from __future__ import annotations

import contextlib
import json
import os

import keras
import numpy as np
import tensorflow as tf

from keras_recompute.distribute import join
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.ipu import install

ROWS, WIDTH, MICROBATCHES, EPOCHS = 2, 3, 16, 2
CASES = ("pipelined, sum", "pipelined, mean", "without a pipeline")


def built(case, accumulation):
    from tensorflow.python import ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = True
    config.configure_ipu_system()
    keras.utils.set_random_seed(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        x = inputs = keras.Input((WIDTH,), batch_size=ROWS)
        for stage, units in ((0, 5), (0, 4), (1, 1)):
            with (
                tf.keras.ipu.PipelineStage(stage)
                if case.startswith("pipelined")
                else contextlib.nullcontext()
            ):
                x = keras.layers.Dense(units, activation="tanh")(x)
        model = keras.Model(inputs, x)
        # No mean of what each process has seen
        error = keras.metrics.RootMeanSquaredError(name="rmse")
        model.compile("adam", "mse", metrics=[error], steps_per_execution=2 * accumulation)
        if case == "without a pipeline":
            model.set_gradient_accumulation_options(accumulation)
        else:
            model.set_pipelining_options(
                accumulation,
                device_mapping=[0, 0],
                gradient_accumulation_reduction_method=case.rpartition(" ")[2],
                pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Sequential,
            )
    return model


def main() -> None:
    with contextlib.ExitStack() as stack:
        number, workers, strategy = 0, 1, None
        if "TF_CONFIG" in os.environ:
            strategy = stack.enter_context(join(wait_seconds=120))
            number, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
        install()
        rng = np.random.default_rng(0)
        x, y = (
            rng.standard_normal((MICROBATCHES, ROWS, size)).astype(np.float32)
            for size in (WIDTH, 1)
        )
        x, y = (data[number::workers].reshape(-1, data.shape[-1]) for data in (x, y))
        for case in CASES:
            model = built(case, 4 // workers)
            model.workers = strategy
            given = {"batch_size": ROWS, "verbose": 0}
            history = model.fit(
                x, y, epochs=EPOCHS, shuffle=False, validation_data=(x, y), **given
            ).history
            found = {"case": case, **history, "losses": model.training_record.losses}
            found.update(
                norms=model.training_record.gradient_norms, evaluated=model.evaluate(x, y, **given)
            )
            predicted = model.predict(x, **given).reshape(MICROBATCHES // workers, -1).tolist()
            print(json.dumps({"found": found, "predicted": predicted}), flush=True)
        if strategy:
            try:
                model.fit(x[: len(x) // (number + 1)], y[: len(y) // (number + 1)], **given)
            except InvalidArgumentError as error:
                print(json.dumps({"said": str(error)}), flush=True)


if __name__ == "__main__":
    main()
