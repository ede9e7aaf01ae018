"""Programs of functional models, checkpointed as a whole."""

from __future__ import annotations

import keras
import numpy as np

from .program import REGISTERED, Ready, integers, numbers, program, stack

L = keras.layers


# Weights before a batch norm: its sums are rounded otherwise where they are fused otherwise.
@program(batch=32, tolerance=1e-5)
def image_classifier(wrap, batch):
    images = keras.Input((16, 16, 3))
    x = L.RandomFlip("horizontal", seed=3)(images)
    for filters in 6 * (8,):
        x = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(epsilon=0.1)(x))
    scores = L.Dense(4)(L.Dropout(0.3, seed=1)(L.GlobalAveragePooling2D()(x)))
    model = wrap.model(keras.Model(images, scores), every=6)
    x, y = numbers(batch, 16, 16, 3), integers(4, batch)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Ready(model, x, y, loss, network=model)


@REGISTERED
class TransformerBlock(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.attention = L.MultiHeadAttention(2, 4, dropout=0.1, seed=1)
        self.norms = [L.LayerNormalization(epsilon=0.1) for _ in range(2)]
        self.up, self.down = L.Dense(32, "gelu"), L.Dense(8)
        self.dropout = L.Dropout(0.2, seed=2)

    def call(self, x, training=None):
        y = self.norms[0](x + self.attention(x, x, training=training))
        return self.norms[1](y + self.dropout(self.down(self.up(y)), training=training))


@REGISTERED
class TokensAndPositions(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.tokens, self.positions = L.Embedding(20, 8), L.Embedding(12, 8)

    def build(self, _):
        self.tokens.build()
        self.positions.build()

    def call(self, ids):
        return self.tokens(ids) + self.positions(keras.ops.arange(12))


@program(batch=64)
def text_classifier(wrap, batch):
    ids = keras.Input((12,), dtype="int32")
    x = TokensAndPositions()(ids)
    for _ in range(2):
        x = TransformerBlock()(x)
    x = L.Dense(2, "softmax")(L.GlobalAveragePooling1D()(x))
    kinds = [TransformerBlock, TokensAndPositions]
    model = wrap.model(keras.Model(ids, x), layers=kinds)
    loss = "sparse_categorical_crossentropy"
    return Ready(model, integers(20, batch, 12), integers(2, batch), loss, network=model)


@program(quick=True)
def head_without_a_loss(wrap, batch):
    inputs = keras.Input((6,))
    trunk = L.Dense(16, "tanh", name="trunk")(inputs)
    for number in range(5):
        trunk = L.Dense(16, "gelu", name=f"trunk_{number}")(trunk)
    idle = L.Dense(16, "tanh", name="idle")(trunk)
    heads = {"price": L.Dense(1, name="price")(trunk), "age": L.Dense(1, name="age")(idle)}
    places = ["trunk", "trunk_1", "trunk_3", "idle"]
    model = wrap.model(keras.Model(inputs, heads), at=places)
    targets = {name: numbers(batch, 1, seed=1) for name in heads}
    loss = {"price": "mse", "age": None}
    return Ready(model, numbers(batch, 6), targets, loss, network=model)


@program()
def triplets(wrap, batch):
    tower = wrap.model(stack(6), every=2)
    names = ("anchor", "positive", "negative")
    images = {name: keras.Input((6,), name=name) for name in names}
    anchor, positive, negative = (tower(image) for image in images.values())
    nearness = [keras.ops.sum((anchor - other) ** 2, -1) for other in (positive, negative)]
    model = keras.Model(images, keras.ops.stack(nearness, -1))
    x = {name: numbers(batch, 6, seed=number) for number, name in enumerate(names)}

    def margin(_, distances):
        return keras.ops.relu(distances[:, 0] - distances[:, 1] + 0.5)

    return Ready(model, x, np.zeros((batch, 2)), margin, network=model)


@REGISTERED
class Endpoint(L.Layer):
    """Hands predictions on, and adds their loss, as the endpoint layers of speech and captchas."""

    def call(self, targets, scores):
        loss = keras.losses.sparse_categorical_crossentropy(targets, scores, from_logits=True)
        self.add_loss(keras.ops.mean(loss))
        return scores


@program(batch=128)
def endpoint_layer(wrap, batch):
    signal, targets = keras.Input((16, 4), name="signal"), keras.Input((16,), name="targets")
    x = signal
    for _ in range(6):
        x = L.Conv1D(8, 3, padding="same", activation="gelu")(x)
    scores = Endpoint()(targets, L.Dense(5)(x))
    model = wrap.model(keras.Model({"signal": signal, "targets": targets}, scores), every=2)
    x = {"signal": numbers(batch, 16, 4), "targets": integers(5, batch, 16).astype("float32")}
    return Ready(model, x, network=model)


@program(saves_memory=False)  # a recurrent layer keeps most, and a mask leaves it in one piece
def translation(wrap, batch):
    source, target = (keras.Input((5,), dtype="int32", name=name) for name in ("source", "target"))
    embedded = L.Embedding(9, 6, mask_zero=True)(source)
    *_, hidden, cell = L.LSTM(6, return_state=True, name="encoder")(embedded)
    x = L.Embedding(9, 6, mask_zero=True, name="embed_target")(target)
    x = L.LSTM(6, return_sequences=True, name="decoder")(x, initial_state=[hidden, cell])
    model = keras.Model({"source": source, "target": target}, L.Dense(9, "softmax")(x))
    model = wrap.model(model, at=["embed_target", "decoder"])
    ids = integers(9, batch, 6, low=1)
    ids[::2, 3:] = 0
    x = {"source": ids[:, :5], "target": ids[:, :5]}
    return Ready(model, x, ids[:, 1:], "sparse_categorical_crossentropy", network=model)


@program(quick=True)
def wide_and_deep(wrap, batch):
    age = keras.Input((2,), name="numbers")
    town = keras.Input((), dtype="int32", name="town")
    place = L.Embedding(11, 6)(town)
    deep = L.Concatenate()([age, place])
    for _ in range(6):
        deep = L.Dense(16, "selu")(deep)
    wide = L.CategoryEncoding(11, output_mode="one_hot")(town)
    output = L.Dense(1, "sigmoid")(L.Concatenate()([wide, deep]))
    model = wrap.model(keras.Model({"numbers": age, "town": town}, output), every=2)
    x = {"numbers": numbers(batch, 2), "town": integers(11, batch)}
    return Ready(model, x, integers(2, batch, 1), "binary_crossentropy", network=model)


@program()
def low_rank_tuning(wrap, batch):
    network = stack(6, outputs=2)
    for number, layer in enumerate(network.layers[1:-1]):
        layer.trainable = False
        if number % 2:
            layer.trainable = True
            layer.enable_lora(2)
    model = wrap.model(network, every=3)
    return Ready(model, numbers(batch, 6), numbers(batch, 2, seed=1), "mse", network=model)
