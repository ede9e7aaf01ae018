"""How Keras makes models, operations and nodes."""

import pickle

import keras
import numpy as np
import tensorflow as tf

from keras_recompute.seams.keras.construction import (
    construct_models_with,
    construct_plain_functional,
    copy_attributes,
    copy_without_constructor,
    derive_from_functional,
    observe_construction,
)
from keras_recompute.seams.keras.graph import Functional
from keras_recompute.seams.keras.saving import reduce_layer


def functional():
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(1)(x))


def test_models_are_made_by_what_takes_the_place_of_keras():
    made = []

    def make(plain, cls, *args, **kwargs):
        made.append(cls)
        return plain(cls, *args, **kwargs)

    with construct_models_with(make):
        model = functional()
        inside = len(made)
        keras.Sequential()
    assert model(tf.zeros((1, 2))).shape == (1, 1)
    assert keras.Model in made[:inside]
    assert keras.Sequential in made[inside:]
    count = len(made)
    assert type(functional()) is type(model)
    assert len(made) == count


def test_a_class_derives_from_functional_as_when_a_functional_model_of_it_is_made():
    def ways():
        class Twice(keras.Model):
            def call(self, inputs, **kwargs):
                return 2 * super().call(inputs, **kwargs)

        return Twice

    ours, theirs = ways(), ways()
    x = keras.Input((2,))
    theirs(x, keras.layers.Dense(1)(x))  # not every Keras makes one of no layer
    assert derive_from_functional(ours).__mro__[1:] == theirs.__mro__[1:]
    assert issubclass(ours, Functional)


def test_operations_and_calls_are_noted_when_they_are_made():
    noted = []
    with observe_construction(noted.append):
        model = functional()
    dense = model.layers[-1]
    assert dense in noted
    assert [each for each in noted if getattr(each, "operation", None) is dense]
    count = len(noted)
    functional()
    assert len(noted) == count


def test_a_model_is_made_again_from_its_graph_weights_and_attributes():
    class Named(keras.Model):
        def __init__(self, word):
            x = keras.Input((2,))
            super().__init__(x, keras.layers.Dense(1)(x), name="named")
            self.word, self._hidden_word = word, word
            self.head = keras.layers.Dense(3)

    model = Named("hello")
    model.trainable = False
    model.compile("sgd", "mse")
    new = copy_without_constructor(model, type("Again", (Named,), {}), without="_hidden")
    assert (new.word, hasattr(new, "_hidden_word"), new.name, new.compiled, new.trainable) == (
        "hello",
        False,
        "named",
        False,
        False,
    )
    assert [id(w) for w in new.weights] == [id(w) for w in model.weights]
    assert new.head is model.head
    other = type("Computed", (keras.Model,), {"word": property(len)})(model.input, model.output)
    copy_attributes(model, other, without="_hidden")
    assert other.head is model.head
    assert isinstance(type(other).word, property)
    np.testing.assert_array_equal(new(tf.ones((1, 2))), model(tf.ones((1, 2))))


def test_a_model_with_a_call_of_its_own_is_made_again():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.second, self.first = keras.layers.Dense(1), keras.layers.Dense(2)

        def call(self, x):
            return self.second(self.first(x))

    model = Own()
    model(tf.zeros((1, 2)))
    new = copy_without_constructor(model, type("Again", (Own,), {}), without="_ours")
    assert new.built
    assert new.layers == model.layers
    assert [id(w) for w in new.trainable_weights] == [id(w) for w in model.trainable_weights]


def test_models_that_keras_makes_for_itself_are_left_to_it():
    """The functional model inside a sequential one, and those of ``construct_plain_functional``."""
    made = []

    def make(plain, cls, *args, **kwargs):
        made.append(cls)
        return plain(cls, *args, **kwargs)

    plain_build, x = keras.Sequential.build, keras.Input((2,))
    y = keras.layers.Dense(1)(x)
    with construct_models_with(make):
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
        assert Functional not in made
        with construct_plain_functional():
            Functional(x, y)
        assert Functional not in made
        Functional(x, y)
        assert Functional in made
    assert keras.Sequential.build is plain_build


def test_a_layer_is_pickled_by_a_class_that_pickle_finds():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    function, arguments = reduce_layer(layer)
    assert (
        pickle.loads(pickle.dumps(function)).__func__ is keras.layers.Layer._unpickle_model.__func__
    )
    made = function(*arguments)
    assert type(made) is keras.layers.Dense
    np.testing.assert_array_equal(made.get_weights()[0], layer.get_weights()[0])
