"""What a strategy gives to models made in its scope, and to functions that it runs."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.mark.usefixtures("scope")
def test_models_made_inside_the_strategy_have_the_methods():
    inputs = keras.Input((3,))
    inside = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    assert hasattr(inside, "set_pipelining_options")


def test_models_made_outside_the_strategy_lack_the_methods():
    inputs = keras.Input((3,))
    outside = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    for name in ("set_pipelining_options", "set_gradient_accumulation_options", "training_record"):
        assert not hasattr(outside, name)


def test_a_strategy_that_leaves_keras_as_it_is():
    """The arguments of Graphcore's class, of which the last says so."""
    from tensorflow.python import ipu

    strategy = ipu.ipu_strategy.IPUStrategy(
        "/device:IPU:0", "/device:CPU:0", True, enable_keras_extensions=False
    )
    with strategy.scope():
        inputs = keras.Input((3,))
        assert not hasattr(
            keras.Model(inputs, keras.layers.Dense(1)(inputs)), "set_pipelining_options"
        )
        assert strategy.run(tf.function(lambda x: x + 1), args=(tf.constant(1),)) == 2


def test_a_strategy_runs_compiled_functions(scope):
    double = tf.function(lambda x: x * 2)
    assert scope.run(double, args=(tf.constant(2),)) == 4
    assert scope.run(double, kwargs={"x": tf.constant(3)}) == 6
    with pytest.raises(ValueError, match="plain function in eager mode"):
        scope.run(lambda x: x, args=(1,))


def test_the_strategy_in_force_ends_with_its_scope():
    from keras_recompute.ipu.configuration.current_strategy import current_strategy
    from keras_recompute.ipu.models import strategy

    def fail_inside():
        with strategy.IPUStrategy().scope():
            assert current_strategy() is not None
            raise KeyError

    plain_new = keras.Model.__new__
    with pytest.raises(KeyError):
        fail_inside()
    assert current_strategy() is None
    assert keras.Model.__new__ is plain_new
