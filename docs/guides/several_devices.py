"""
Title: Several devices
Description: Divide the batch, or the weights too, and keep the checkpoints.
"""

"""
Your model trains on several GPUs or TPUs, and each of them runs out of memory. Checkpoints lower
what **each device** takes. This guide shows it without any GPU: a CPU stands for eight devices.

It takes half a minute on two cores and downloads nothing.

```
pip install "keras-recompute[jax]"
KERAS_BACKEND=jax python3 several_devices.py
```

`tensorflow` instead of `jax` works too, with two devices.

## Devices to try it on

These lines make several devices of one CPU. They must stand before Keras is imported. On a machine
with GPUs leave them out.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import keras
import numpy as np

import keras_recompute as kr

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

x = np.random.default_rng(0).standard_normal((1024, 128)).astype("float32")
y = x[:, :1]


def build():
    keras.utils.set_random_seed(0)
    inputs = found = keras.Input((128,))
    for n in range(12):
        found = keras.layers.Dense(128, "gelu", name=f"hidden_{n}")(found)
    return keras.Model(inputs, keras.layers.Dense(1)(found))


"""
## JAX: a distribution of Keras

`keras.distribution` divides the batch among the devices. It is set before the model is built.
`kr.checkpointed`, `kr.plan` and `kr.liveness.profile` need nothing new, and all figures are those
of **one** device.
"""


def needed_mebibytes(model):
    model.compile("adam", "mse")
    return kr.liveness.profile(model, x, y).not_always_live_peak_bytes / 2**20


def train(model):
    model.compile("sgd", "mse")
    return model.fit(x, y, batch_size=1024, epochs=2, shuffle=False, verbose=0).history["loss"]


if BACKEND == "jax":
    one_device = needed_mebibytes(build())
    expected = train(build())

    keras.distribution.set_distribution(keras.distribution.DataParallel())
    divided = needed_mebibytes(build())
    saving = needed_mebibytes(kr.checkpointed(build(), every=4))
    print(f"each device: {one_device:.2f} MiB alone, {divided:.2f} MiB of eight")
    print(f"and {saving:.2f} MiB with checkpoints")
    assert divided < one_device / 4
    assert saving < divided

    found = train(kr.checkpointed(build(), every=4))
    np.testing.assert_allclose(found, expected, rtol=1e-4)

"""
The losses are those of one device and of the plain model. To divide the weights too, name the axis
of each kernel in a layout. Here two groups of four devices each hold a quarter of every kernel:
"""

if BACKEND == "jax":
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*hidden_.*kernel"] = (None, "model")
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    divided = needed_mebibytes(build())
    saving = needed_mebibytes(kr.checkpointed(build(), every=4))
    print(f"weights divided too: {divided:.2f} MiB plain, {saving:.2f} MiB with checkpoints")
    assert saving < divided

    found = train(kr.checkpointed(build(), every=4))
    np.testing.assert_allclose(found, expected, rtol=1e-4)

"""
For devices that are not here, `device="h100"` in `profile` and `plan` means as many of them as the
distribution has: [a budget for a device that is not here](device_budget.py).

## TensorFlow: a strategy

`tf.distribute.MirroredStrategy` has a copy of the weights on each device of a machine. Models and
optimizers are made in its scope. A model with checkpoints is compiled on each replica, which plain
Keras does not do.
"""

if BACKEND == "tensorflow":
    expected = train(build())
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = kr.checkpointed(build(), every=4)
        model.compile("sgd", "mse", jit_compile=True)
    found = model.fit(x, y, batch_size=1024, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(found.history["loss"], expected, rtol=1e-4)

    share = x[:512], y[:512]  # what one of two replicas gets
    plain = build()
    plain.compile("sgd", "mse")
    divided = kr.liveness.profile(plain, *share).not_always_live_peak_bytes / 2**20
    saving = kr.liveness.profile(model, *share).not_always_live_peak_bytes / 2**20
    print(f"each replica: {divided:.2f} MiB plain, {saving:.2f} MiB with checkpoints")
    assert saving < divided

"""
Several machines work the same way, by `kr.distribute.join()` in place of the strategy. It starts
from Slurm, Kubernetes or `TF_CONFIG`, names a worker that does not come, and goes on from the last
backup where one is lost: [docs/distribute.md](../distribute.md).

## PyTorch

`fit` knows nothing of several processes there. In a loop of your own, PyTorch's
`DistributedDataParallel(model)` around a model with checkpoints has the losses and weights of one
process.

## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| divide the batch in `fit` | `MirroredStrategy`, `kr.distribute` | `keras.distribution.DataParallel` | no |
| divide the weights | no | `keras.distribution.ModelParallel` | no |
| in a loop of your own | `strategy.run` | `stateless_call` | `DistributedDataParallel` |
| several machines | tried as processes of one machine | not tried | tried as processes of one machine |
| figures of one device | give `profile` its share of the batch | yes, from the whole batch | give `profile` its share |
| update in the backward pass | on one machine without jit | no: at the end | no: at the end |

All of this ran on CPUs: no GPU was available.

## If it does not save enough

* **Are the weights most of it?** Divide them: `keras.distribution.ModelParallel`, and for a model
  of KerasHub the layout that its class has (`get_layout_map`).
* **Are the gradients?** With several replicas all of them are alive until the update. Take an
  optimizer with small states, such as Lion or Adafactor, so that the rest has room.
* **Place checkpoints where little crosses** the devices: behind a block, not inside of it.
* **Let a budget choose**: `kr.plan(model, memory_budget="12GiB", sample=(x, y))` works with a
  distribution.
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask.
"""
