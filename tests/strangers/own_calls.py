"""Programs of models and layers with a ``call`` of their own, which wrap a layer or a function."""

from __future__ import annotations

import keras
import tensorflow as tf

import keras_recompute as kr

from .program import PLAIN, REGISTERED, Ready, integers, numbers, program, stack

L = keras.layers


class GraphConvolution(L.Layer):
    """Each node of a fixed graph gets what its neighbours send along the edges."""

    def __init__(self, sources, goals, count):
        super().__init__()
        self.sources, self.goals, self.count = sources, goals, count
        self.send, self.update = L.Dense(8, "gelu"), L.Dense(8, "gelu")

    def call(self, nodes):
        messages = self.send(tf.gather(nodes, self.sources))
        received = tf.math.unsorted_segment_sum(messages, self.goals, self.count)
        return nodes + self.update(tf.concat([nodes, received], -1))


class NodeClassifier(keras.Model):
    """As in articles on graphs: all nodes are in the model, and the batch holds some by number."""

    def __init__(self, wrap, count):
        super().__init__()
        edges = integers(count, 2, 3 * count)
        self.nodes = tf.constant(numbers(count, 4, seed=2))
        self.first, self.last = L.Dense(8), L.Dense(3)
        layers = [GraphConvolution(edges[0], edges[1], count) for _ in range(3)]
        self.convolutions = [wrap.function(layer) for layer in layers]

    def call(self, numbers_of_nodes):
        x = self.first(self.nodes)
        for convolution in self.convolutions:
            x = convolution(x)
        return self.last(tf.gather(x, numbers_of_nodes))


@program(quick=True)
def graph_of_nodes(wrap, batch):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Ready(NodeClassifier(wrap, batch), integers(batch, batch), integers(3, batch), loss)


class LanguageModel(keras.Model):
    """The table of words in front scores the words behind, too."""

    def __init__(self, wrap):
        super().__init__()
        self.table = L.Embedding(10, 8)
        self.blocks = [L.Dense(8, "gelu") for _ in range(4)]
        self.middle = wrap.function(self.run_blocks)
        self.end = wrap.function(self.score)

    def run_blocks(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = x + tf.sin(block(x))
        return x

    def score(self, x):
        words = tf.convert_to_tensor(self.table.embeddings)
        return tf.einsum("btd,wd->btw", tf.tanh(tf.sin(x)), words)

    def call(self, ids):
        return self.end(self.middle(ids))


@program(batch=256)
def tied_language_model(wrap, batch):
    ids = integers(10, batch, 7)
    model = LanguageModel(wrap)
    model.table.build(ids.shape)
    for block in model.blocks:
        block.build((None, 6, 8))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Ready(model, ids[:, :-1], ids[:, 1:], loss)


class Tapped(keras.Model):
    """A function fills a list with what lies between, which the model uses afterwards."""

    def __init__(self, wrap):
        super().__init__()
        self.blocks = [L.Dense(16, "gelu") for _ in range(8)]
        for block in self.blocks:
            block.build((None, 16))
        self.first, self.last = L.Dense(16), L.Dense(2)
        self.stage = wrap.function(self.run_stage)

    def run_stage(self, x, first, taps):
        for block in self.blocks[first : first + 4]:
            x = x + tf.sin(block(x))
        taps.append(tf.tanh(x))
        return x

    def call(self, x):
        taps = []
        x = self.first(x)
        for first in (0, 4):
            x = self.stage(x, first, taps)
        return self.last(x + tf.add_n(taps))


@program()
def list_filled_in_place(wrap, batch):
    return Ready(Tapped(wrap), numbers(batch, 6), numbers(batch, 2, seed=1), "mse")


@REGISTERED
class NormBlock(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.up, self.down = L.Dense(32, "gelu", use_bias=False), L.Dense(8, use_bias=False)
        self.norm = L.BatchNormalization(epsilon=0.1)

    def call(self, x, training=None):
        return x + self.norm(self.down(self.up(x)), training=training)


@REGISTERED
class RecomputedNormBlock(NormBlock):
    call = kr.checkpoint(NormBlock.call)


@program(tolerance=1e-5)  # as the image classifier
def decorated_call(wrap, batch):
    kind = NormBlock if wrap is PLAIN else RecomputedNormBlock
    first = x = keras.Input((8,))
    for _ in range(4):
        x = kind()(x)
    model = keras.Model(first, L.Dense(2)(x))
    return Ready(model, numbers(batch, 8), numbers(batch, 2, seed=1), "mse", network=model)


@REGISTERED
class TwoLayerCell(L.Layer):
    """A cell of ``keras.layers.RNN``, of two layers of which the author wraps the first."""

    def __init__(self, hidden=None, **options):
        super().__init__(**options)
        self.hidden = hidden or L.Dense(16, "gelu")
        self.new_state = L.Dense(16, "tanh")
        self.state_size = self.output_size = 16

    def get_config(self):
        return {**super().get_config(), "hidden": keras.saving.serialize_keras_object(self.hidden)}

    @classmethod
    def from_config(cls, config):
        hidden = keras.saving.deserialize_keras_object(config.pop("hidden"))
        return cls(hidden, **config)

    def build(self, shape):
        if not self.hidden.built:  # a cell that was loaded has it from its configuration
            self.hidden.build((None, shape[-1] + 16))
        self.new_state.build((None, 16))
        self.built = True

    def call(self, x, states):
        state = self.new_state(self.hidden(keras.ops.concatenate([x, states[0]], -1)))
        return state, [state]


@program(batch=1024)
def layer_in_a_recurrent_cell(wrap, batch):
    series = keras.Input((8, 4))
    x = L.RNN(TwoLayerCell(wrap.function(L.Dense(16, "gelu"))))(series)
    model = keras.Model(series, L.Dense(1)(x))
    return Ready(model, numbers(batch, 8, 4), numbers(batch, 1, seed=1), "mse", model)


@program(batch=512)
def model_at_every_step(wrap, batch):
    features = wrap.model(stack(8, depth=5, outputs=8), every=2)
    series = keras.Input((6, 8))
    x = L.LSTM(8)(L.TimeDistributed(features)(series))
    model = keras.Model(series, L.Dense(1)(x))
    return Ready(model, numbers(batch, 6, 8), numbers(batch, 1, seed=1), "mse", model)
