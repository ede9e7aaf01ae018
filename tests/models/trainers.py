"""Models that train other models, as keras.io writes them: each with a ``train_step`` of its own.

Each is made of networks that a function changes, so that the same trainer runs with checkpoints and
without. The networks are called without ``training``, or with False where they are frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

FEATURES, DEPTH = 8, 6
Change = Callable[[keras.Model], keras.Model]


def network(out: int = FEATURES, *, seed: int, normalized: bool = False) -> keras.Model:
    """``DEPTH`` dense layers that keep their activations, and one behind them."""
    x = inputs = keras.Input((FEATURES,))
    for n in range(DEPTH):
        start = keras.initializers.GlorotUniform(seed=seed + n)
        x = keras.layers.Dense(FEATURES, activation="gelu", kernel_initializer=start)(x)
        if normalized and n == DEPTH // 2:
            x = keras.layers.BatchNormalization()(x)
    start = keras.initializers.GlorotUniform(seed=seed + DEPTH)
    return keras.Model(inputs, keras.layers.Dense(out, kernel_initializer=start)(x))


class Trainer(keras.Model):
    """Compiled with a kind of optimizer, of which each network that is trained has its own."""

    def apply(
        self, tape: tf.GradientTape, loss: tf.Tensor, model: keras.Model, optimizer: Any = None
    ) -> None:
        weights = model.trainable_variables
        (optimizer or self.optimizer).apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )


class VAE(Trainer):
    """Two networks, one optimizer, random numbers in between, metrics of its own."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.encoder, self.decoder = change(network(2 * FEATURES, seed=0)), change(network(seed=50))
        self.seeds = keras.random.SeedGenerator(7)
        self.tracker = keras.metrics.Mean(name="objective")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, spread = tf.split(self.encoder(data), 2, axis=-1)
            drawn = mean + tf.exp(0.5 * spread) * keras.random.normal(
                tf.shape(mean), seed=self.seeds
            )
            off = tf.reduce_mean(tf.square(data - self.decoder(drawn)))
            loss = off - 0.05 * tf.reduce_mean(1 + spread - tf.square(mean) - tf.exp(spread))
        weights = self.encoder.trainable_variables + self.decoder.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"objective": self.tracker.result()}


class GAN(Trainer):
    """Two optimizers, given to a ``compile`` of its own, in turns."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.generator, self.discriminator = change(network(seed=0)), change(network(1, seed=50))
        self.seeds = keras.random.SeedGenerator(7)

    def compile(self, optimizer, **options) -> None:
        super().compile(**options)
        self.d_optimizer = keras.optimizers.get(optimizer)
        self.g_optimizer = type(self.d_optimizer).from_config(self.d_optimizer.get_config())

    def train_step(self, data):
        noise = keras.random.normal(tf.shape(data), seed=self.seeds)
        made = self.generator(noise)
        cross = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            real, fake = self.discriminator(data), self.discriminator(made)
            d_loss = cross(tf.ones_like(real), real) + cross(tf.zeros_like(fake), fake)
        self.apply(tape, d_loss, self.discriminator, self.d_optimizer)
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise))
            g_loss = cross(tf.ones_like(fake), fake)
        self.apply(tape, g_loss, self.generator, self.g_optimizer)
        return {"d_loss": d_loss, "objective": g_loss}


class SimSiam(Trainer):
    """One network, called on two views of the data."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.encoder = change(network(seed=0, normalized=True))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            one, other = self.encoder(data), self.encoder(tf.reverse(data, [-1]))
            alike = keras.losses.cosine_similarity(tf.stop_gradient(one), other)
            loss = tf.reduce_mean(
                alike + keras.losses.cosine_similarity(tf.stop_gradient(other), one)
            )
        self.apply(tape, loss, self.encoder)
        return {"objective": loss}


class Diffusion(Trainer):
    """A network that removes noise, and a slowly moving copy of it."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.net = change(network(seed=0, normalized=True))
        self.slow = change(network(seed=0, normalized=True))
        self.slow.set_weights(self.net.get_weights())
        self.seeds = keras.random.SeedGenerator(7)

    def train_step(self, data):
        noise = keras.random.normal(tf.shape(data), seed=self.seeds)
        level = keras.random.uniform((tf.shape(data)[0], 1), seed=self.seeds)
        with tf.GradientTape() as tape:
            found = self.net(tf.sqrt(level) * noise + tf.sqrt(1 - level) * data, training=True)
            loss = tf.reduce_mean(tf.square(noise - found))
        self.apply(tape, loss, self.net)
        for weight, slow in zip(self.net.weights, self.slow.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * weight)
        return {"objective": loss}


class Penalized(Trainer):
    """A critic whose gradient by its input is to have the length 1: a second derivative."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.critic = change(network(1, seed=0))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(data)
                score = self.critic(data)
            slope = tf.norm(inner.gradient(score, data), axis=-1)
            loss = tf.reduce_mean(score) + 10 * tf.reduce_mean(tf.square(slope - 1))
        self.apply(tape, loss, self.critic)
        return {"objective": loss}


class Frozen(Trainer):
    """What is trained stands in front of a frozen network, which runs as in inference."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.shift = keras.layers.Dense(FEATURES, kernel_initializer="identity")
        self.shift.build((None, FEATURES))
        judge = network(seed=0, normalized=True)
        judge.trainable = False
        self.judge = change(judge)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.judge(self.shift(data), training=False) - 1))
        self.apply(tape, loss, self.shift)
        return {"objective": loss}


ALL = {cls.__name__: cls for cls in (VAE, GAN, SimSiam, Diffusion, Penalized, Frozen)}
