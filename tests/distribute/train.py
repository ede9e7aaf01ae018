"""A program that trains the networks on several replicas and prints what came of each as a line of
JSON.

``train mirrored 2 JIT CASE...`` divides this process's processor into two devices; ``train workers
2 ...`` joins the cluster of TF_CONFIG; ``train alone 2 ...`` runs what one of two replicas does.
JIT is 0 or 1.
"""

from __future__ import annotations

import contextlib
import json
import sys

import keras
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.distribute import join
from keras_recompute.liveness import profile
from keras_recompute.seams.keras.training import record_loss
from tests.distribute.networks import BATCH, EPOCHS, built, data_for, optimizer


def trained(name: str, strategy: tf.distribute.Strategy, *, jit: bool) -> dict:
    with strategy.scope():
        model = built(name, kr.Model)
        model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=jit, steps_per_execution=2)
    x, y = data_for(name, model)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, validation_data=(x, y)
    ).history
    found = {"losses": history["loss"], "validation": history["val_mae"][-1]}
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    found.update(
        mae=float(abs(predicted - y).mean()),
        evaluated=model.evaluate(x, y, batch_size=BATCH, verbose=0)[1],
    )
    if jit:
        share = BATCH // strategy.num_replicas_in_sync
        found["temporaries"] = profile(model, x[:share], y[:share]).not_always_live_peak_bytes
    return found


def alone(name: str, samples: int) -> dict:
    """Return what the program of one process takes beside its weights for a batch of ``samples``:
    loss, metrics, gradients.
    """
    model = built(name, kr.Model)
    model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=True)
    x, y = data_for(name, model)
    model.train_on_batch(x[:samples], y[:samples])

    def step(x: tf.Tensor, y: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(x, y, y_pred, training=True)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        record_loss(model, loss, samples)
        return model.compute_metrics(x, y, y_pred), gradients

    return {
        "temporaries": profile(
            tf.function(step, jit_compile=True), x[:samples], y[:samples]
        ).not_always_live_peak_bytes
    }


def main(kind: str, replicas: str, jit: str, *names: str) -> None:
    with contextlib.ExitStack() as stack:
        strategy = None
        if kind == "workers":
            strategy = stack.enter_context(join(wait_seconds=120))
        elif kind == "mirrored":
            (device,) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(
                device, [tf.config.LogicalDeviceConfiguration()] * int(replicas)
            )
            strategy = tf.distribute.MirroredStrategy(
                [f"CPU:{number}" for number in range(int(replicas))]
            )
        for name in names:
            keras.backend.clear_session()
            found = (
                trained(name, strategy, jit=bool(int(jit)))
                if strategy
                else alone(name, BATCH // int(replicas))
            )
            print(json.dumps({"case": name, **found}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
