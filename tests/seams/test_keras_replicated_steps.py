"""What Keras's trainer does where a model was made in the scope of a strategy; on several replicas:
``tests/distribute``.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.replicated_steps import ReplicatedSteps, set_strategy, strategy_of

ONE = tf.distribute.MirroredStrategy(["CPU:0"])


class Epoch(list):
    """What Keras goes through in an epoch."""

    num_batches = 5


class Noting(ReplicatedSteps, keras.Sequential):
    """Says that its strategy has two replicas, and notes the batches that its steps are for."""

    strategy = SimpleNamespace(num_replicas_in_sync=2)
    distribute_strategy = property(lambda self: self.strategy)

    def on_replicas(self, step):
        assert step.__name__ in ("train_step", "test_step")
        self.batches = []
        return lambda data: self.batches.append(data) or {"loss": len(self.batches)}

    def check_training(self, count):
        self.count = count


def noting(**options):
    model = Noting([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False, **options)
    return model


def test_an_execution_is_so_many_steps_or_those_that_are_left():
    model = noting(steps_per_execution=2)
    model.make_train_function()
    batches = iter(range(3))
    assert [model.train_function(batches), model.train_function(batches)] == [
        {"loss": 2},
        {"loss": 3},
    ]
    assert model.batches == [0, 1, 2]
    with pytest.raises(StopIteration):
        model.train_function(batches)


def test_what_is_not_there_is_handed_on_as_none():
    model = noting()
    model.make_test_function()
    model.test_function(iter([(1, tf.experimental.Optional.empty(tf.TensorSpec(())))]))
    assert model.batches == [(1, None)]


@pytest.mark.long
def test_one_replica_is_keras_own_way():
    model = noting()
    model.strategy = ONE
    x = np.zeros((4, 2))
    assert model.evaluate(x, x[:, :1], verbose=0) == 0
    assert not hasattr(model, "batches")


def test_a_model_is_built_in_the_scope_by_the_part_of_one_replica():
    with ONE.scope():
        model = Noting([keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    data = ONE.experimental_distribute_dataset(
        tf.data.Dataset.from_tensors((tf.zeros((4, 3)), tf.zeros((4, 1))))
    )
    model._maybe_symbolic_build(iterator=Epoch([(0, 1, iter(data))]))
    assert model.built
    assert model.count == 5
    assert strategy_of(model.weights[0].value) is ONE


def test_the_strategy_of_a_thing():
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert [
        strategy_of(each) for each in (plain, plain.weights[0].value, keras.optimizers.SGD())
    ] == [None, None, None]
    set_strategy(ONE, plain)
    with ONE.scope():
        assert strategy_of(keras.optimizers.SGD()) is ONE
    assert strategy_of(plain) is plain.distribute_strategy is ONE
