"""
Title: Reading a liveness page
Description: What holds the memory of a training step, when, and which layer it belongs to.
"""

"""
Before you change a model to save memory, look at what takes it. A *liveness report* has every step
of a compiled training step and every buffer that is alive in it. In this guide you make two
reports of one model, plain and with checkpoints, and learn to read them as pictures, as a page in
your browser, and as numbers in Python.

It takes half a minute on two cores and downloads nothing.

```
pip install "keras-recompute[tensorflow,report]"
python3 liveness_page.py
```

## Two reports

The model is a transformer of eight small blocks.
"""

import keras
import numpy as np
from keras import layers

import keras_recompute as kr


def build(blocks=8, width=64):
    inputs = x = keras.Input((128, width))
    for n in range(blocks):
        y = layers.LayerNormalization(name=f"norm_{n}")(x)
        y = layers.MultiHeadAttention(4, width // 4, name=f"attention_{n}")(y, y)
        x = layers.Add(name=f"block_{n}_middle")([x, y])
        y = layers.Dense(4 * width, "gelu", name=f"up_{n}")(x)
        y = layers.Dense(width, name=f"down_{n}")(y)
        x = layers.Add(name=f"block_{n}")([x, y])
    return keras.Model(inputs, layers.Dense(1, name="head")(x))


plain = build()
saving = kr.checkpointed(plain, at=[f"block_{n}" for n in range(8)])
x = np.random.default_rng(0).standard_normal((8, 128, 64)).astype("float32")
y = np.zeros((8, 128, 1), "float32")


def report(model):
    model.compile("adam", "mse")
    return kr.liveness.profile(model, x, y)


reports = [("plain", report(plain)), ("with checkpoints", report(saving))]
before, after = (program for _, program in reports)
print(f"peak: {before.peak_bytes / 2**20:.1f} MiB and {after.peak_bytes / 2**20:.1f} MiB")
assert after.peak_bytes < before.peak_bytes / 2

"""
## The picture

From left to right are the steps of the program, in the order in which they run. The height is what
is held at each.
"""

kr.report.comparison_figure(reports, "two_reports.png")

"""
![Memory over the steps of a training step: a mountain without checkpoints, a low saw with them](../../static/guides/two_reports.png)

Read it in this order:

* **The floor** is always there: weights and the states of the optimizer. No checkpoint lowers it.
* **The climb on the left** is the forward pass. Each layer adds its activations.
* **The way down on the right** is the backward pass. It reads the activations, last ones first, and
  frees them.
* **The summit** is your peak. It is where the climb ends: the turn from forward to backward.

With checkpoints the climb is nearly flat, since only what passes a checkpoint is kept. In the
backward pass stands a row of teeth. Each tooth is one section that is computed again, used, and
freed. **The peak is now the highest tooth.** If one tooth stands out, divide that section.

## The page

One report after the other can be explored in a browser. The page is one file, and loads nothing.
"""

kr.report.write_page(reports, "liveness.html")

"""
![The page: figures at the top, the curve of both programs, and tables below it](../../static/guides/page.png)

* At the top are the figures: the peak, and what is always alive.
* A click on the curve pins a step. The table below then lists the buffers that are alive there.
* Each buffer has a *category* (activation, gradient, weight, optimiser), a *layer*, and a *phase*:
  forward, recompute, backward or update.
* With Shift, a click compares a second step with the first. Drag to zoom, and press `?` for the
  keys.

`keras-recompute open DIR` opens such a page for a stored report.

## The same in numbers

A report is plain data. Which layers hold the memory at the peak?
"""


def shares_at_peak(program):
    held = {}
    for buffer in program.live_at(program.peak_step):
        held[buffer.category] = held.get(buffer.category, 0) + buffer.size_bytes
    return {name: size / program.peak_bytes for name, size in held.items()}


shares = [shares_at_peak(program)["activation"] for program in (before, after)]
print(f"activations at the peak: {shares[0]:.0%} and {shares[1]:.0%}")
assert shares[0] > 0.8 > shares[1]

largest = before.top_buffers(8)
for buffer in largest:
    print(f"{buffer.size_bytes / 2**20:5.2f} MiB {buffer.category:10} {buffer.layer}")
assert any("attention" in (buffer.layer or "") for buffer in largest)

"""
The largest buffers are the probabilities of the attention layers, 2 MiB in each: 8 sequences, 4
heads, and 128 by 128 pairs of tokens of 4 bytes. The report shows what to do:
checkpoints behind each block, or `kr.MultiHeadAttention`, which keeps no probabilities.

Keep reports beside your experiments. `keras-recompute compare plain/ saved/` says what changed
from one to the other.
"""

kr.report.write_report(before, "plain")
kr.report.write_report(after, "saved")

"""
## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| a report of | the program that XLA compiles | the program that XLA compiles | the storages of a step on tensors without values |
| a step of the picture | one instruction | one instruction | one operation |
| workspaces inside of one operation | in it | in it | not in it |
| another device than this, `device="h100"` | yes | yes | its memory is compared, nothing is compiled |
| the program that `fit` really ran | `kr.liveness.capture_fit` | no | no |

## If it does not save enough

* **The floor is most of the picture:** checkpoints cannot help. Train fewer weights, in lower
  precision, or with an optimizer that keeps less.
* **One tooth is the peak:** put a checkpoint inside that section, or recompute the layer's parts by
  `kr.checkpointed(model, layers=...)`.
* **The peak stands at the very end of the climb:** it is the loss, or the layers behind the last
  checkpoint. Put a checkpoint later.
* **The peak is in the update:** all gradients are alive at once there. See
  [choosing](../choosing.md#where-weights-outweigh-activations).
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask, and
  [docs/liveness.md](../liveness.md) each figure of a report.
"""
