"""
Title: An image classifier on half the memory
Description: Train MobileNet of keras.applications with checkpoints, and prove what that saves.
"""

"""
You have an image classifier, and the batch that you want does not fit. In this guide you train
MobileNet of `keras.applications` on **less than half the memory**, with the same gradients. It
takes one more line of code.

The guide runs in about a minute on two cores of any computer. It downloads nothing: the weights
and the images are random, because neither changes the memory of a training step.

```
pip install "keras-recompute[tensorflow]"
python3 image_classifier.py
```

`jax` or `torch` instead of `tensorflow` works too. Put `KERAS_BACKEND=jax` or `torch` in front of
the second line then.

## The model, as you know it
"""

import keras
import numpy as np

import keras_recompute as kr

images = np.random.default_rng(0).random((8, 96, 96, 3), "float32")
labels = np.arange(8) % 10


def build():
    return keras.applications.MobileNet(weights=None, input_shape=(96, 96, 3), classes=10)


plain = build()
plain.compile("adam", "sparse_categorical_crossentropy")

"""
## What does one training step need?

`kr.liveness.profile` compiles the step that `fit` would run on this batch, with the loss, the
gradients and the optimizer. It trains nothing. What it returns is a record of the memory that the
compiled step takes.
"""


def needed_mebibytes(model):
    record = kr.liveness.profile(model, images, labels)
    return record.peak_bytes / 2**20


before = needed_mebibytes(plain)
print(f"plain: {before:.0f} MiB")

"""
Most of that are *activations*: the outputs of 91 layers, kept from the forward pass until the
backward pass reads them. They grow with the batch and with the size of the images. The weights and
the states of Adam take 37 MiB, whatever the batch.

## One more line

`kr.checkpointed` puts a *checkpoint* behind about every eighth layer. Only what passes a
checkpoint is kept. In the backward pass the layers between two checkpoints are computed again.
"""

model = kr.checkpointed(plain, every=8)
model.compile("adam", "sparse_categorical_crossentropy")

after = needed_mebibytes(model)
print(f"with checkpoints: {after:.0f} MiB")
assert after < before / 2

"""
On TensorFlow the two lines are:

```
plain: 174 MiB
with checkpoints: 56 MiB
```

Which number is the best? Begin with the root of the number of layers: 91 layers, so 8 or 10. With
fewer checkpoints the sections between them are long, and one section has to be held while it is
computed again. With more, the checkpoints themselves add up.

## It trains the same

To see that both learn the same, build the network twice from one seed, and train each on the same
batch. MobileNet has dropout and batch normalization, so this compares their masks and statistics
too.
"""


def train(change):
    keras.utils.set_random_seed(0)
    network = change(build())
    network.compile("adam", "sparse_categorical_crossentropy")
    history = network.fit(images, labels, batch_size=8, epochs=2, verbose=0)
    return history.history["loss"]


expected = train(lambda network: network)
found = train(lambda network: kr.checkpointed(network, every=8))
print("losses:", *(f"{loss:.4f}" for loss in [*expected, *found]))
np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
np.testing.assert_allclose(found[1], expected[1], rtol=0.1)

"""
The first two losses agree in four digits. The next ones come after an update, and this network
amplifies rounding: changing its images by a millionth moves some gradients by a tenth. They agree
within a tenth, where the update itself took more than half of the loss. So there is no setting to
tune again.

The price is time: the forward pass of most layers runs twice. A training step takes about a
quarter to a third longer. The larger batch that fits now often wins some of it back.

## Save it, load it

`model` is a Keras model. Its weights are those of `plain`, in files too.
"""

model.save_weights("classifier.weights.h5")
plain.load_weights("classifier.weights.h5")

"""
## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| the figures here | compiled by XLA for this CPU | compiled by XLA for this CPU | recorded on tensors without values |
| weights are updated during the backward pass | yes | by XLA, where it can | yes |
| `kr.checkpointed`, `fit`, `save` | yes | yes | yes |
| which way is fast for convolutions on a CPU | `jit_compile=False` | `jit_compile=True` | without `torch.compile` |

## If it does not save enough

* **Find out what holds the memory.** `keras-recompute doctor train.py` lists it for your own
  script. Checkpoints lower activations, and neither weights nor optimizer states.
* **Give a budget instead of a number.** `kr.plan(plain, memory_budget="60MiB", sample=(images,
  labels))` compiles a few plans and returns the fastest that fits:
  [a budget for a device that is not here](device_budget.py).
* **Take half precision.** `keras.config.set_dtype_policy("mixed_bfloat16")` before the model is
  built halves the activations that are left. Checkpoints work with it.
* **Take smaller batches.** `keras.optimizers.Adam(gradient_accumulation_steps=4)` adds up the
  gradients of four. Batch normalization then sees the small ones.
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask.
"""
