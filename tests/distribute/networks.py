"""Small networks, data for them, and what several replicas must come to: each in turn, in one
process, by TensorFlow alone.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import keras_recompute as kr

SEED = 3
BATCH, EPOCHS = 12, 5


def perceptron(model_class):
    x = inputs = keras.Input((6,))
    for _ in range(4):
        x = kr.RecomputationCheckpoint()(keras.layers.Dense(8, activation="tanh")(x))
    return model_class(inputs, keras.layers.Dense(1)(x))


def recurrent(model_class):
    """The example's: sections of a sequence, one after the other, by one layer."""
    inputs = keras.Input((12, 4))
    layer, state, outputs = kr.LSTM(8, return_sequences=True, return_state=True), None, []
    for begin in range(0, 12, 4):
        output, *state = layer(kr.TimeSlice(begin, begin + 4)(inputs), initial_state=state)
        state = kr.RecomputationCheckpoint()(state)
        outputs.append(output)
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.Concatenate(axis=1)(outputs)))


def convolutions(model_class):
    x = inputs = keras.Input((8, 8, 2))
    for _ in range(2):
        x = keras.layers.Conv2D(4, 3, padding="same")(x)
        x = kr.RecomputationCheckpoint()(keras.layers.ReLU()(keras.layers.BatchNormalization()(x)))
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(x)))


def transformer(model_class):
    x = inputs = keras.Input((6, 8))
    for block in range(2):
        attended = keras.layers.MultiHeadAttention(2, 4, dropout=0.2, seed=block)(x, x)
        x = keras.layers.LayerNormalization()(
            x + keras.layers.Dropout(0.2, seed=10 + block)(attended)
        )
        x = kr.RecomputationCheckpoint()(keras.layers.Dense(8, activation="gelu")(x))
    return model_class(inputs, keras.layers.Dense(1)(x))


# Builder, samples: 5 epochs are 20 gradients, or with 44 samples the last batch of each has 8, with
# 37 it has 1.
CASES = {
    "perceptron": (perceptron, 48),
    "perceptron, a batch of 8": (perceptron, 44),
    "perceptron, a batch of 1": (perceptron, 37),
    "recurrent": (recurrent, 48),
    "convolutions": (convolutions, 48),
    "transformer": (transformer, 48),
}


def built(name, model_class):
    keras.utils.set_random_seed(SEED)
    return CASES[name][0](model_class)


def data_for(name, model):
    samples = CASES[name][1]
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(samples, *model.input_shape[1:])).astype(np.float32)
    return x, rng.normal(size=(samples, *model.output_shape[1:])).astype(np.float32)


def optimizer():
    """Everything that Keras's optimizers do to a gradient: scaled losses, two gradients an update,
    and clipping.
    """
    adam = keras.optimizers.Adam(0.02, clipnorm=0.1, gradient_accumulation_steps=2)
    return keras.optimizers.LossScaleOptimizer(adam, initial_scale=4.0, dynamic_growth_steps=7)


def one_after_another(name: str, replicas: int, *, jit: bool) -> list[float]:
    """Train by a loop of its own on plain Keras models, one for each replica: each keeps statistics
    and masks of its own.

    A batch is divided into equal parts, the last shorter; the gradient is that of the mean over all
    samples. Returns the mean loss of each epoch. ``jit`` says whether XLA computes it, which draws
    other random numbers than TensorFlow.
    """
    models = [built(name, keras.Model) for _ in range(replicas)]
    x, y = data_for(name, models[0])
    update, losses = optimizer(), []
    update.build(models[0].trainable_variables)
    steps = [
        tf.function(lambda x, y, model=model: _step(model, update, x, y), jit_compile=jit)
        for model in models
    ]
    for _ in range(EPOCHS):
        sums = 0.0
        for begin in range(0, len(x), BATCH):
            batch = range(begin, min(begin + BATCH, len(x)))
            part = -(-BATCH // replicas)
            gradients = [0.0 for _ in models[0].trainable_variables]
            for number, step in enumerate(steps):
                own = list(batch[number * part : (number + 1) * part])
                if not own:
                    continue
                loss, found = step(x[own], y[own])
                gradients = [g + len(own) / len(batch) * f for g, f in zip(gradients, found)]
                sums += float(loss) * len(own)
            update.apply_gradients(zip(gradients, models[0].trainable_variables))
            for model in models[1:]:
                for variable, updated in zip(
                    model.trainable_variables, models[0].trainable_variables
                ):
                    variable.assign(updated)
        losses.append(sums / len(x))
    return losses


def _step(model, update, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        scaled = update.scale_loss(loss)
    return loss, tape.gradient(scaled, [v.value for v in model.trainable_variables])
