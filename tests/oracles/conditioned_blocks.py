"""A model whose blocks all read one older value."""

import keras

L = keras.layers


class Block(keras.layers.Layer):
    """A layer of two inputs, which reads the second through a wide layer."""

    def __init__(self, wide, **kwargs):
        super().__init__(**kwargs)
        self.wide = L.Dense(wide, activation="tanh")

    def build(self, shapes):
        self.narrow = L.Dense(shapes[0][-1], activation="tanh")
        self.wide.build(shapes[1])
        self.narrow.build((None, shapes[0][-1] + self.wide.units))

    def call(self, inputs):
        x, condition = inputs
        return self.narrow(keras.ops.concatenate([x, self.wide(condition)], axis=-1))


def conditioned(blocks, width, wide):
    """Return blocks that each read the same condition, and their names."""
    condition, x = inputs = keras.Input((width,)), keras.Input((width,))
    names = [f"block_{number}" for number in range(blocks)]
    for name in names:
        x = Block(wide, name=name)([x, condition])
    return keras.Model(inputs, x), names
