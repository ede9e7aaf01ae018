"""What Keras's ``fit`` does with a model and its data."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.seams.keras.training import (
    JitChooser,
    build_for_fit,
    first_batch_of_fit,
    has_own_train_step,
    is_within_fit,
    optimizer_index,
    record_loss,
    split_all_for_validation,
    split_for_validation,
    watching_for_losses,
)


class Asked(keras.Sequential):
    """Notes for each ``evaluate`` whether ``fit`` calls it."""

    def evaluate(self, *args, **kwargs):
        self.asked = [*getattr(self, "asked", []), is_within_fit(kwargs)]
        return super().evaluate(*args, **kwargs)


def compiled():
    model = Asked([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


def test_variables_are_made_as_for_fit():
    model = compiled()
    build_for_fit(model, (tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1))))
    assert model.built
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4  # a total and a count, of the loss and of mae
    assert int(model.optimizer.iterations) == 0


def test_the_first_batch_is_that_of_fit():
    x, y = np.ones((70, 3)), np.zeros((70, 1))
    sizes = [part.shape for part in first_batch_of_fit(x, y, np.ones(70))]
    assert sizes == [(32, 3), (32, 1), (32,)]  # Keras's default
    assert first_batch_of_fit(x, y)[0].dtype == "float32"  # as fit casts arrays
    # 35 samples are left, in five steps.
    (part,) = first_batch_of_fit(x, validation_split=0.5, steps_per_epoch=5)
    assert part.shape == (7, 3)
    assert len(first_batch_of_fit(x, y, class_weight={0: 2.0}, batch_size=4)) == 3
    with pytest.warns(UserWarning, match="ran out of data"):
        assert first_batch_of_fit(tf.data.Dataset.from_tensor_slices(x).take(0)) == ()


def test_a_train_step_of_its_own_is_told():
    class Trainer(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    inputs = keras.Input((3,))
    outputs = kr.RecomputationCheckpoint()(keras.layers.Dense(1)(inputs))
    assert not has_own_train_step(keras.Model(inputs, outputs))
    assert not has_own_train_step(kr.checkpointed(keras.Model(inputs, outputs), layers="dense*"))
    assert has_own_train_step(Trainer(inputs, outputs))
    assert has_own_train_step(kr.checkpointed(Trainer(inputs, outputs), layers="dense*"))


def test_a_loss_is_noted_in_the_metric_that_is_reported():
    model = compiled()
    model.evaluate(np.zeros((2, 3)), np.zeros((2, 1)), verbose=0)
    model.reset_metrics()
    for loss, samples in ((1.0, 1), (4.0, 2)):
        record_loss(model, loss, samples)
    assert float(model.get_metrics_result()["loss"]) == 3  # (1 * 1 + 2 * 4) / 3


@pytest.mark.parametrize(("loss", "asked"), [(None, 1), ("mse", 0)])
def test_a_missing_loss_is_noticed(loss, asked):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    found = []
    result = contextlib.nullcontext() if loss else pytest.raises(ValueError, match="No loss")
    with watching_for_losses(model, lambda: found.append(1)), result:
        model.compute_loss(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros((3, 1)))
    assert len(found) == asked
    assert "compute_loss" not in vars(model)


@pytest.mark.long
def test_evaluate_within_fit_is_told_from_one_that_the_user_calls():
    model, x, y = compiled(), np.zeros((2, 3)), np.zeros((2, 1))
    model.fit(x, y, validation_data=(x, y), verbose=0)
    model.evaluate(x, y, verbose=0)
    assert model.asked == [True, False]


def test_data_is_split_as_fit_splits_it():
    trained, validation = split_for_validation(np.arange(10), 0.3)
    assert trained.tolist() == list(range(7))
    assert validation.tolist() == [7, 8, 9]
    trained, validation = split_all_for_validation((np.arange(10), None, np.ones(10)), 0.3)
    assert (len(trained[0]), trained[1], len(trained[2])) == (7, None, 7)
    assert validation[0].tolist() == [7, 8, 9]


def test_the_place_of_a_variable_in_an_optimizer():
    """Keras hands ``update_step`` TensorFlow's variable."""
    variables, optimizer = [keras.Variable([1.0]), keras.Variable([2.0])], keras.optimizers.SGD()
    optimizer.build(variables)
    for place, variable in enumerate(variables):
        assert (
            optimizer_index(optimizer, variable)
            == optimizer_index(optimizer, variable.value)
            == place
        )


class Chooser(JitChooser, keras.Model):
    def chooses_jit(self, losses_and_metrics):
        self.asked = keras.tree.flatten(losses_and_metrics)
        return True


def test_compile_asks_whether_to_take_jit_where_it_was_not_told():
    x = keras.Input((2,))
    model = Chooser(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mape"])
    assert (model.jit_compile, model.asked) == (True, ["mse", "mae", "mape"])


@pytest.mark.parametrize("options", [{"jit_compile": False}, {"run_eagerly": True}])
def test_compile_asks_nothing_where_it_was_told(options):
    x = keras.Input((2,))
    model = Chooser(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", **options)
    assert not model.jit_compile
    assert not hasattr(model, "asked")


def test_a_model_that_keras_does_not_compile_takes_no_jit():
    x = keras.Input((2,))
    model = Chooser(x, keras.layers.Dense(1)(x))
    model.layers[1].supports_jit = False
    model.compile("sgd", "mse")
    assert not model.jit_compile
