"""
Title: A training step of your own
Description: A diffusion model with checkpoints in its network.
"""

"""
Your model is a class with a `train_step` of its own: a GAN, a diffusion model, a student with its
teacher. There is no graph of layers from its inputs to its loss, so no checkpoint can stand behind
"every fourth layer" of the whole. But the networks inside it have such a graph. **Put checkpoints
into the networks, and leave the training step as it is.**

In this guide you train a small diffusion model that way, in less than half the memory. It takes
half a minute on two cores, downloads nothing, and runs on each backend of Keras:

```
pip install "keras-recompute[tensorflow]"
python3 custom_training_step.py
```

## The network

It gets noisy images and how noisy each is, and returns the noise. This one has twelve blocks that
keep the size of the image.
"""

import keras
import numpy as np
from keras import layers, ops

import keras_recompute as kr


def build_network(width=16, blocks=12):
    images, level = keras.Input((32, 32, 3)), keras.Input((1, 1, 1))
    channels = layers.Dense(width)(level)  # the same for all pixels
    x = layers.Conv2D(width, 3, padding="same")(images)
    for _ in range(blocks):
        y = layers.GroupNormalization(4)(layers.Add()([x, channels]))
        y = layers.Activation("silu")(y)
        x = layers.Add()([x, layers.Conv2D(width, 3, padding="same")(y)])
    return keras.Model([images, level], layers.Conv2D(3, 3, padding="same")(x))


"""
## The training step

The model mixes noise into the images, asks the network for the noise, and compares. After each
update it moves a slow copy of the network a little, which later draws the images. What the three
backends share comes first: `call` returns the loss.
"""


class DiffusionBase(keras.Model):
    def __init__(self, network, slow):
        super().__init__()
        self.network, self.slow = network, slow
        self.slow.trainable = False
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, images, training=True):
        level = keras.random.uniform((ops.shape(images)[0], 1, 1, 1), seed=self.seeds)
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        noisy = ops.sqrt(1 - level) * images + ops.sqrt(level) * noise
        found = self.network([noisy, level], training=training)
        return ops.mean(ops.square(noise - found))

    def move_slow_copy(self):
        for weight, slow in zip(self.network.weights, self.slow.weights):
            slow.assign(0.99 * slow + 0.01 * weight)


"""
How a gradient is taken is the backend's own. Read the one that you use. Nothing in it speaks of
checkpoints.
"""

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class Diffusion(DiffusionBase):
        def train_step(self, images):
            with tf.GradientTape() as tape:
                loss = self(images, training=True)
            weights = self.network.trainable_weights
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply_gradients(zip(gradients, weights))
            self.move_slow_copy()
            return {"noise_loss": loss}


if keras.backend.backend() == "jax":
    import jax

    class Diffusion(DiffusionBase):
        def train_step(self, state, images):
            weights, others, optimizer, metrics = state

            def loss_of(weights):
                return self.stateless_call(weights, others, images, training=True)

            (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
            weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
            ours = zip(self.trainable_variables, weights)
            theirs = zip(self.non_trainable_variables, others)
            with keras.StatelessScope([*ours, *theirs]) as scope:
                self.move_slow_copy()
            others = [scope.get_current_value(v) for v in self.non_trainable_variables]
            return {"noise_loss": loss}, (weights, others, optimizer, metrics)


if keras.backend.backend() == "torch":
    import torch

    class Diffusion(DiffusionBase):
        def train_step(self, images):
            self.zero_grad()
            loss = self(images, training=True)
            loss.backward()
            weights = self.network.trainable_weights
            with torch.no_grad():
                self.optimizer.apply([w.value.grad for w in weights], weights)
                self.move_slow_copy()
            return {"noise_loss": loss}


"""
## Plain, and with checkpoints

`kr.checkpointed` takes the network. The slow copy needs none: it is called outside of the gradient.
"""

images = np.random.default_rng(0).random((16, 32, 32, 3), "float32")


def build(change):
    keras.utils.set_random_seed(0)
    network, slow = build_network(), build_network()
    slow.set_weights(network.get_weights())
    model = Diffusion(change(network), slow)
    model.compile("adam")
    model(images[:1])  # makes the weights of a class with a call of its own
    model.optimizer.build(network.trainable_weights)
    return model


plain = build(lambda network: network)
model = build(lambda network: kr.checkpointed(network, every=6))

"""
## What it saves

`kr.liveness.profile` compiles the `train_step` that `fit` would run on this batch. It includes the
gradients, the update and the slow copy.
"""


def needed_mebibytes(model):
    return kr.liveness.profile(model, images).peak_bytes / 2**20


before, after = needed_mebibytes(plain), needed_mebibytes(model)
print(f"plain: {before:.1f} MiB, with checkpoints: {after:.1f} MiB")
assert after < before / 2

"""
## It trains the same

Both models draw the same noise, since both begin with the same seed. The random numbers of a
forward pass are kept as their seeds, and are not drawn again.
"""

options = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0}
expected = plain.fit(images, **options).history["noise_loss"]
found = model.fit(images, **options).history["noise_loss"]
print("losses:", *(f"{loss:.4f}" for loss in [*expected, *found]))
np.testing.assert_allclose(found, expected, rtol=1e-3)
for one, other in zip(model.slow.weights, plain.slow.weights):
    np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-3)

"""
A GAN works the same way: give it `kr.checkpointed(generator, every=4)` and a discriminator made
like that. [docs/models.md](../models.md#models-that-train-other-models) has one, and a variational
autoencoder.

## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| networks with checkpoints in a `train_step` of your own | yes | yes, by `stateless_call` | yes |
| the compiled figures | by XLA | by XLA | recorded on tensors without values |
| weights updated in the backward pass, in a step of your own | by `kr.updates_in_backward()` | by XLA, where it can | by `kr.updates_in_backward(optimizer)` |
| a `train_step` without a graph of layers anywhere | `layers=` | `layers=` | `layers=` |

## If it does not save enough

* **Look at the part that is largest.** In a GAN only one network is trained at a time. Print
  `kr.liveness.profile(model, images).top_buffers(5)`: each buffer names its layer.
* **If a network has a `call` of its own**, no checkpoint can stand between its layers. Then
  recompute its blocks: `kr.checkpointed(model, layers="block_*", sample=images)`.
* **If memory is held by a copy of the network**, checkpoints do not lower it. Keep the copy in
  half precision, or on the host.
* **Let a budget choose.** `kr.plan(model, memory_budget="20MiB", sample=images)` compiles your own
  step with more and more kinds of layers recomputed, and returns the first that fits.
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask.
"""
