"""What a call is for, and what it hands on to the layers inside."""

import keras
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.call_context import current_training, entry_layer, pass_training
from keras_recompute.seams.keras.call_stack import (
    enclosing_step,
    is_being_exported,
    stateless_caller,
)

X, Y = tf.ones((4, 3)), tf.zeros((4, 3))


class Asks(keras.layers.Layer):
    """Asks at each call."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask
        self.scale = self.add_weight(initializer="ones", name="scale")

    def call(self, inputs):
        self.ask()
        return inputs * self.scale


def asking(ask):
    answers = []
    inputs = keras.Input((3,))
    model = keras.Model(inputs, Asks(lambda: answers.append(ask()))(inputs))
    answers.clear()
    return model, answers


@pytest.mark.parametrize("eagerly", [False, True])
def test_the_step_of_a_trainer_is_found(eagerly):
    model, answers = asking(enclosing_step)
    model.compile("sgd", "mse", run_eagerly=eagerly)
    model.fit(X, Y, verbose=0)
    assert set(answers) == {"train_step"}
    answers.clear()
    model.evaluate(X, Y, verbose=0)
    assert set(answers) == {"test_step"}
    answers.clear()
    model.predict(X, verbose=0)
    assert set(answers) == {"predict_step"}
    answers.clear()
    model(X)
    assert answers == [None]


def test_a_step_that_autograph_converts_is_found():
    model, answers = asking(enclosing_step)
    model.compile("sgd", "mse")
    tf.function(lambda: model.test_step((X, Y)))()
    assert set(answers) == {"test_step"}


def test_a_function_of_the_name_of_a_step_is_none():
    model, answers = asking(enclosing_step)

    def test_step(self):
        return model(self)

    test_step(X)
    assert answers == [None]


def test_what_is_written_to_a_file_is_known(tmp_path):
    model, answers = asking(is_being_exported)
    model.export(tmp_path / "keras", verbose=False)
    tf.saved_model.save(model, tmp_path / "tensorflow")
    assert answers
    assert all(answers)
    answers.clear()
    tf.function(model)(X)
    assert answers == [False]


def test_training_is_passed_on_to_layers_inside():
    model, answers = asking(current_training)
    inner = model.layers[-1]
    for training in (True, False):
        with pass_training(training, model):
            inner(X)
    with pass_training(None, model):
        inner(X)
    inner(X)
    assert answers == [True, False, None, None]
    assert entry_layer() is None


def test_the_outermost_call_is_known():
    model, answers = asking(entry_layer)
    model(X)
    assert answers == [model]
    assert entry_layer() is None


def test_the_model_of_a_stateless_call_is_found():
    model, answers = asking(lambda: (stateless_caller(), entry_layer()))
    model.stateless_call(model.trainable_variables, model.non_trainable_variables, X)
    assert [caller for caller, _ in answers] == [model]
    answers.clear()
    model(X)
    assert [caller for caller, _ in answers] == [None]
