"""Layers that differ in what they hold, or hold the same, for the number that they are made for."""

from __future__ import annotations

import dataclasses
import functools
import types

import keras
import numpy as np
import tensorflow as tf


def factory(k):
    def activation(x):
        return keras.ops.tanh(x) * k

    return activation


def scaled(x, k):
    return keras.ops.tanh(x) * k


@dataclasses.dataclass
class Settings:
    factor: float


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSettings:
    factor: float


class Activation:
    """An activation that is an object with state."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return keras.ops.tanh(x) * self.factor


class Scale(keras.layers.Layer):
    """Multiplies by what ``get_factor`` finds in its attributes, which its configuration omits."""

    factor = 1.0

    def __init__(self, factor=None, get_factor=None, **kwargs):
        super().__init__(**kwargs)
        self.kernel_of = keras.layers.Dense(4)
        if factor is not None:
            self.factor = factor
        self.get_factor = get_factor

    def build(self, shape):
        self.kernel_of.build(shape)

    def call(self, x):
        factor = self.factor if self.get_factor is None else self.get_factor(self.factor)
        return keras.ops.tanh(self.kernel_of(x)) * factor

    def get_config(self):
        return {"name": self.name}


class Named(Scale):
    def call(self, x):
        return super().call(x) * (1.0 + int(self.name.split("_")[-1]))


class NamedByHelper(Scale):
    def call(self, x):
        return super().call(x) * number_in_name(self)


def number_in_name(layer):
    return 1.0 + int(layer.name.split("_")[-1])


class Initialised(Scale):
    """Draws a constant with an initializer that it holds: two seeds, two constants."""

    def __init__(self, seed, **kwargs):
        super().__init__(**kwargs)
        self.draw = keras.initializers.RandomUniform(1.0, 2.0, seed=seed)

    def call(self, x):
        return super().call(x) * self.draw((4,))


class Holder(keras.layers.Layer):
    """Holds layers one in another."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.Sequential([Scale(factor)])

    def call(self, x):
        return self.inner(x)


class Tied(keras.layers.Layer):
    """Two layers inside, or one that is called twice."""

    def __init__(self, is_tied, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Dense(4)
        self.second = self.first if is_tied else keras.layers.Dense(4)

    def call(self, x):
        return keras.ops.tanh(self.second(keras.ops.tanh(self.first(x))))


def with_attribute(name, value):
    layer = Scale()
    setattr(layer, name, value)
    return layer


def with_call(k):
    """Return a layer of which one object has another ``call``."""
    layer = keras.layers.Dense(4)

    def call(self, x, training=None):
        return keras.ops.tanh(type(self).call(self, x, training=training)) * k

    layer.call = types.MethodType(call, layer)
    return layer


def dense(activation):
    return keras.layers.Dense(4, activation=activation)


def by_settings(settings):
    return lambda x: settings.factor * x


def lambda_of(k):
    return lambda x: keras.ops.tanh(x) * k


# What differs with the number: a layer for the number n, named by what makes the difference.
DIFFERENT = {
    "factory": lambda n: dense(factory(n + 1.0)),
    "lambda": lambda n: dense(lambda_of(n + 1.0)),
    "default argument": lambda n: dense(lambda x, k=n + 1.0: keras.ops.tanh(x) * k),
    "partial": lambda n: dense(functools.partial(scaled, k=n + 1.0)),
    "object": lambda n: dense(Activation(n + 1.0)),
    "method": lambda n: dense(Activation(n + 1.0).__call__),
    "closure over an object": lambda n: dense(by_settings(Settings(n + 1.0))),
    "attribute": lambda n: with_attribute("factor", n + 1.0),
    "type of a number": lambda n: with_attribute("factor", [1, True, 1.0][n]),
    "array": lambda n: with_attribute("factor", np.full(4, n + 1.0, "float32")),
    "tensor": lambda n: with_attribute("factor", tf.fill([4], n + 1.0)),
    "settings": lambda n: Scale(Settings(n + 1.0), lambda s: s.factor),
    "frozen settings": lambda n: Scale(FrozenSettings(n + 1.0), lambda s: s.factor),
    "list": lambda n: Scale([n + 1.0], lambda s: s[0]),
    "dict in a list": lambda n: Scale([{"k": n + 1.0}], lambda s: s[0]["k"]),
    "another call": with_call,
    "name": lambda n: Named(name=f"named_{n}"),
    "name read by a helper": lambda n: NamedByHelper(name=f"named_by_helper_{n}"),
    "initializer": lambda n: Initialised(seed=n),
    "layer in a model in a layer": lambda n: Holder(n + 1.0),
    "weights tied inside": lambda n: Tied(n == 1),
    "variable of TensorFlow": lambda n: Scale(tf.Variable(n + 1.0, trainable=False)),
}
# The same with nothing that differs.
EQUAL = {
    "factory": lambda _: dense(factory(2.0)),
    "lambda": lambda _: dense(lambda_of(2.0)),
    "default argument": lambda _: dense(lambda x, k=2.0: keras.ops.tanh(x) * k),
    "partial": lambda _: dense(functools.partial(scaled, k=2.0)),
    "object": lambda _: dense(Activation(2.0)),
    "attribute": lambda _: with_attribute("factor", 2.0),
    "attribute set in another order": lambda n: in_order(["one", "two"] if n else ["two", "one"]),
    "array": lambda _: with_attribute("factor", np.full(4, 2.0, "float32")),
    "tensor": lambda _: with_attribute("factor", tf.fill([4], 2.0)),
    "settings": lambda _: Scale(Settings(2.0), lambda s: s.factor),
    "frozen settings": lambda _: Scale(FrozenSettings(2.0), lambda s: s.factor),
    "list": lambda _: Scale([2.0], lambda s: s[0]),
    "name": lambda n: Scale(name=f"any_{n}"),
    "initializer of weights": lambda n: keras.layers.Dense(4, "tanh", kernel_initializer=draw(n)),
    "layer in a model in a layer": lambda _: Holder(2.0),
    "weights tied inside": lambda _: Tied(True),
    "attention": lambda _: SelfAttention(),
}


class SelfAttention(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 2)
        self.norm = keras.layers.LayerNormalization()

    def call(self, x):
        y = x[:, None, :]
        return self.norm(self.attention(y, y)[:, 0])


def draw(seed):
    return keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)


def in_order(names):
    layer = Scale(2.0)
    for name in names:
        setattr(layer, name, name)
    return layer
