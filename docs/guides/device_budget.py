"""
Title: A budget for a device that is not here
Description: Will it train on that GPU, and with which checkpoints?
"""

"""
You write your model on a laptop, and it will train on a GPU or TPU somewhere else. Will it fit
there? In this guide the device's own compiler answers, on your machine: it needs a description of
the device, and not the device. Then you name the memory, and get the **fastest plan that fits**.

It takes about a minute on two cores. The compilers of GPUs and TPUs come with JAX, and are 6 GB:

```
pip install "keras-recompute[jax,devices]"
KERAS_BACKEND=jax python3 device_budget.py
```

Where there is no GPU, JAX says so in a long error, and goes on. `JAX_PLATFORMS=cpu` in front of
`python3` keeps it from looking for one.

On PyTorch no compiler is needed: `pip install "keras-recompute[torch]"`.

## The model and its batch

A transformer of six blocks reads 320 sequences of 512 tokens. The batch is never filled: only
its shape and its type count, so these arrays take a few bytes.
"""

import keras
import numpy as np
from keras import layers

import keras_recompute as kr

TOKENS, WIDTH, BATCH = 512, 256, 320


def build(blocks=6):
    inputs = x = keras.Input((TOKENS, WIDTH))
    for n in range(blocks):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(8, WIDTH // 8)(y, y)
        x = layers.Add(name=f"block_{n}_middle")([x, y])
        y = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add(name=f"block_{n}")([x, layers.Dense(WIDTH)(y)])
    return keras.Model(inputs, layers.Dense(1)(x))


x = np.broadcast_to(np.float32(0), (BATCH, TOKENS, WIDTH))
y = np.broadcast_to(np.float32(0), (BATCH, TOKENS, 1))
model = build()
model.compile("adam", "mse")

"""
## Does it fit?

`kr.liveness.devices()` lists the devices. A T4 has 14.8 GiB.
"""

DEVICE = "t4"
for device in kr.liveness.devices():
    if device.name == DEVICE:
        print(device)

record = kr.liveness.profile(model, x, y, device=DEVICE)
print(f"plain: {record.peak_bytes / 2**30:.1f} of {record.capacity_bytes / 2**30:.1f} GiB")
assert record.peak_bytes > record.capacity_bytes

"""
It does not. What is compiled is the whole training step: loss, gradients, and the update by Adam.

## Give the budget

`memory_budget="device"` is all the memory of the device. `kr.plan` tries the plain model first,
then plans with more and more checkpoints. Each is compiled for the device, and the first that fits
is returned.
"""

planned, plan = kr.plan(model, memory_budget="device", device=DEVICE, sample=(x, y))
print(plan)

planned.compile("adam", "mse")
record = kr.liveness.profile(planned, x, y, device=DEVICE)
print(f"planned: {record.peak_bytes / 2**30:.1f} of {record.capacity_bytes / 2**30:.1f} GiB")
assert record.peak_bytes < record.capacity_bytes

"""
Copy the line of the plan into your training script, so that it does not search again:
"""

print(plan.line)

"""
Leave some room in practice. Other programs use the device, data is loaded ahead, and JAX takes
three quarters of a GPU's memory unless `XLA_PYTHON_CLIENT_MEM_FRACTION` says more. A budget such as
`memory_budget="12GiB"` is a number or a text.

## How little could it need?

`memory_budget="smallest"` finds the plan that needs least. A budget that is too small is refused,
and the error says which one would do:
"""

try:
    kr.plan(model, memory_budget="100MiB", device=DEVICE, sample=(x, y))
except kr.planning.BudgetTooSmallError as refusal:
    smallest = refusal.smallest_budget_bytes
    print(f"refused; the smallest: {smallest / 2**30:.1f} GiB")

assert smallest < record.capacity_bytes

"""
## Models that do not fit here either

On JAX a model of any size is built without its weights in `kr.liveness.abstract()`, and
`keras-recompute fits` asks the same from the command line, and finds the largest batch:

```
keras-recompute fits Llama3Backbone:llama3_8b.json --device h100 --batch 1 --length 2048
```

[docs/full-size.md](../full-size.md) has more of it.

## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| the figures are of | the device's compiler, in JAX's packages | the device's compiler | tensors without values, compared with the memory of the device |
| several devices: `keras.distribution` | no | yes | no |
| a model without weights | no | yes | no |
| needs `keras-recompute[devices]` | yes | yes | no |

None of this was run on such a device. A GPU tunes its programs where they run, and cuDNN's
convolutions take memory that no compiler without the device knows.

## If it does not save enough

* **The refusal names the smallest budget.** If that is too much, halve the batch, and add up the
  gradients of two: `keras.optimizers.Adam(gradient_accumulation_steps=2)`.
* **Take half precision**: `keras.config.set_dtype_policy("mixed_bfloat16")`, or `"mixed_float16"`
  on a T4.
* **Is it one layer?** Attention keeps all its probabilities; `kr.MultiHeadAttention` keeps none.
* **Is it the weights?** [LoRA](language_model.py) trains few of them. On several devices
  `keras.distribution` divides them: [several devices](several_devices.py).
* **Ask for another device.** `device="l4"` has 24 GB, and an `h100` 80.
"""
