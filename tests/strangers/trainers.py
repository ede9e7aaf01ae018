"""Programs whose models train others: a ``train_step`` of their own calls networks as functions."""

from __future__ import annotations

import keras
import tensorflow as tf

from .program import Ready, adam, numbers, program, stack

L = keras.layers


class Trainer(keras.Model):
    """Networks that a ``train_step`` of its own trains, with one optimizer for each of them."""

    def __init__(self, *networks):
        super().__init__()
        self.networks = list(networks)
        self.optimizers_of = [adam() for _ in networks]

    def descend(self, number, tape, loss):
        weights = self.networks[number].trainable_variables
        self.optimizers_of[number].apply_gradients(zip(tape.gradient(loss, weights), weights))


class Vae(Trainer):
    def __init__(self, *networks):
        super().__init__(*networks)
        self.seeds = keras.random.SeedGenerator(7)

    def train_step(self, data):
        encoder, decoder = self.networks
        with tf.GradientTape(persistent=True) as tape:
            mean, log_variance = tf.split(encoder(data), 2, axis=-1)
            noise = keras.random.normal((tf.shape(data)[0], 3), seed=self.seeds)
            decoded = decoder(mean + tf.exp(0.5 * log_variance) * noise)
            divergence = tf.exp(log_variance) + mean**2 - 1 - log_variance
            loss = tf.reduce_mean((decoded - data) ** 2) + 0.05 * tf.reduce_mean(divergence)
        for number in range(2):
            self.descend(number, tape, loss)
        return {"loss": loss}


@program()
def variational_autoencoder(wrap, batch):
    encoder = wrap.model(stack(8, depth=4, outputs=6), every=2)
    decoder = wrap.model(stack(3, depth=4, outputs=8), every=2)
    x = numbers(batch, 8)
    return Ready(Vae(encoder, decoder), x, network=encoder, network_input=x)


class Gan(Trainer):
    def train_step(self, real):
        generator, critic = self.networks
        cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        noise, ones = real[:, :4], tf.ones((tf.shape(real)[0], 1))
        with tf.GradientTape() as tape:
            scores = tf.concat([critic(real), critic(generator(noise))], axis=0)
            loss = cross_entropy(tf.concat([ones, 0 * ones], axis=0), scores)
        self.descend(1, tape, loss)
        with tf.GradientTape() as tape:
            fooled = cross_entropy(ones, critic(generator(noise)))
        self.descend(0, tape, fooled)
        return {"critic": loss, "generator": fooled}


@program()
def adversarial_networks(wrap, batch):
    generator = wrap.model(stack(4, depth=4, outputs=6, activation="silu"), every=2)
    critic = wrap.model(stack(6, depth=4, outputs=1, activation="tanh"), every=2)
    model = Gan(generator, critic)
    return Ready(model, numbers(batch, 6), network=generator, network_input=numbers(8, 4))


class SimSiam(Trainer):
    def train_step(self, data):
        encoder, predictor = self.networks
        with tf.GradientTape(persistent=True) as tape:
            first, second = encoder(data), encoder(data[:, ::-1])
            similar = keras.losses.cosine_similarity
            loss = tf.reduce_mean(similar(tf.stop_gradient(second), predictor(first)))
            loss += tf.reduce_mean(similar(tf.stop_gradient(first), predictor(second)))
        for number in range(2):
            self.descend(number, tape, loss)
        return {"loss": loss}


# The gradients of the two views, rounding too, are added in another order.
@program(tolerance=5e-6)
def two_views(wrap, batch):
    encoder = wrap.model(stack(8, depth=4), every=2)
    predictor = wrap.model(stack(8, depth=4), every=2)
    x = numbers(batch, 8)
    return Ready(SimSiam(encoder, predictor), x, network=encoder, network_input=x)


class Diffusion(Trainer):
    def __init__(self, network, average):
        super().__init__(network)
        self.average, self.seeds = average, keras.random.SeedGenerator(5)

    def train_step(self, images):
        network = self.networks[0]
        noise = keras.random.normal(tf.shape(images), seed=self.seeds)
        time = keras.random.uniform((tf.shape(images)[0], 1), seed=self.seeds)
        mixed = tf.cos(time) * images + tf.sin(time) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(network([mixed, time], training=True) - noise))
        self.descend(0, tape, loss)
        for weight, average in zip(network.weights, self.average.weights):
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss}


@program(tolerance=1e-5)  # as the image classifier
def diffusion(wrap, batch):
    images, time = keras.Input((8,)), keras.Input((1,))
    x = down = L.Dense(16)(L.Concatenate()([images, L.Dense(4, "silu")(time)]))
    for _ in range(3):
        x = L.BatchNormalization(epsilon=0.1)(x)
        x = L.Add()([L.Dense(16)(L.Dense(16, "silu")(x)), x])
    network = keras.Model([images, time], L.Dense(8)(L.Concatenate()([x, down])))
    average = keras.models.clone_model(network)
    average.set_weights(network.get_weights())
    network = wrap.model(network, every=4)
    x = numbers(batch, 8)
    feed = [numbers(8, 8), numbers(8, 1)]
    return Ready(Diffusion(network, average), x, network=network, network_input=feed)
