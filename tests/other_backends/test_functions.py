"""``kr.checkpoint`` of functions and layers: values, gradients and state are the plain calls'."""

import functools
import warnings

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning, UnsupportedError

L, ops = keras.layers, keras.ops
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = np.ones((8, 1), "float32")


@keras.saving.register_keras_serializable("tests.functions")
class Block(L.Layer):
    """Everything that a replay could do twice: statistics, dropout masks, an added loss."""

    def __init__(self, units=6, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense, self.dropout = L.Dense(units, "gelu"), L.Dropout(0.4, seed=3)
        self.normalization = L.BatchNormalization()

    def build(self, shape):
        self.dense.build(shape)
        self.normalization.build((*shape[:-1], self.units))

    def call(self, x, training=None):
        y = self.normalization(self.dropout(self.dense(x), training=training), training=training)
        self.add_loss(0.01 * ops.mean(y**2))
        return y

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), L.Dense(1)

    def inner(self, x, training):
        return self.second(self.first(x, training=training), training=training)

    def call(self, x, training=None):
        return self.head(self.inner(x, training))


class InFunction(Plain):
    def call(self, x, training=None):
        return self.head(kr.checkpoint(self.inner)(x, training))


class InClosure(Plain):
    def call(self, x, training=None):
        def inner(x):
            return self.second(self.first(x, training=training), training=training)

        return self.head(kr.checkpoint(inner, policy=kr.policies.save_matmuls)(x))


class Nested(Plain):
    def call(self, x, training=None):
        second = kr.checkpoint(self.second)

        @kr.checkpoint
        def inner(x):
            return second(self.first(x, training=training), training=training)

        return self.head(inner(x))


class OfLayers(Plain):
    def __init__(self):
        super().__init__()
        self.first = kr.checkpoint(self.first)
        self.second = kr.checkpoint(self.second, policy=kr.policies.save_everything)


@pytest.mark.parametrize("kind", [InFunction, InClosure, Nested, OfLayers])
def test_models_train_as_plain_ones(kind):
    def place(_):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        return kind()

    assert_trains_as_plain(Plain, X, Y, place)


def test_a_layer_stays_a_layer(tmp_path):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    block = Block()
    model = keras.Model(inputs, L.Dense(1)(kr.checkpoint(block)(inputs)))
    assert len(model.weights) == len(block.weights) + 2
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(model.predict(X, verbose=0), loaded.predict(X, verbose=0), 1e-6)
    for history in (model.fit(X, Y, verbose=0).history, loaded.fit(X, Y, verbose=0).history):
        assert np.isfinite(history["loss"][0])


def test_a_layer_that_is_built_by_its_first_call():
    keras.utils.set_random_seed(2)
    plain, ours = L.Dense(3, "tanh"), L.Dense(3, "tanh")
    wanted = plain(X)
    function = kr.checkpoint(lambda x: 1.0 * ours(x))
    found = function(ops.convert_to_tensor(X))
    assert found.shape == wanted.shape
    ours.set_weights(plain.get_weights())
    found = function(ops.convert_to_tensor(X))
    np.testing.assert_allclose(ops.convert_to_numpy(found), ops.convert_to_numpy(wanted), 1e-6)


def test_arguments_and_results_of_any_kind():
    @kr.checkpoint
    def function(x, how, *, scale=1.0, parts=()):
        y = x * scale if how == "times" else x + scale
        return {"sum": y + sum(parts), "how": how, "nothing": None}

    x = ops.convert_to_tensor(X)
    found = function(x, "times", scale=2.0, parts=[x, x])
    np.testing.assert_allclose(ops.convert_to_numpy(found["sum"]), 4 * X, 1e-6)
    assert (found["how"], found["nothing"]) == ("times", None)
    partial = kr.checkpoint(functools.partial(lambda x, y: x - y, y=x))
    np.testing.assert_array_equal(ops.convert_to_numpy(partial(x)), 0 * X)


def test_each_call_draws_random_numbers_of_its_own():
    ours, plain = (keras.random.SeedGenerator(5) for _ in range(2))
    draw = kr.checkpoint(lambda x: x + keras.random.normal((8, 4), seed=ours))
    found = [ops.convert_to_numpy(draw(ops.convert_to_tensor(X))) for _ in range(2)]
    wanted = [X + ops.convert_to_numpy(keras.random.normal((8, 4), seed=plain)) for _ in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert not np.allclose(*found)


def test_a_loss_of_a_layer_that_is_not_known_is_refused():
    class Box:
        block = Block()

    box = Box()
    box.block.build((8, 4))
    with pytest.raises(UnsupportedError, match="calls a layer that adds a loss, and it is not"):
        kr.checkpoint(lambda x: box.block(x, training=True))(ops.convert_to_tensor(X))


@pytest.mark.parametrize("policy", [kr.policies.save_names, kr.policies.save_all_but_names])
def test_a_name_that_the_function_does_not_mark(policy):
    def marking(x):
        return ops.sin(kr.checkpoint_name(ops.sin(x), "half"))

    def nested(x):
        return kr.checkpoint(marking)(ops.tanh(x))

    x = keras.Variable(X).value  # needs a gradient on PyTorch
    for function in (marking, nested):
        with pytest.warns(RecomputeWarning, match=r"names 'halff', but .* it marks 'half'\."):
            kr.checkpoint(function, policy=policy("half", "halff"))(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RecomputeWarning)
            kr.checkpoint(function, policy=policy("half"))(x)
    with pytest.warns(RecomputeWarning, match=r"names 'half', but 'sin' marks .* no value at all"):
        kr.checkpoint(ops.sin, policy=policy("half"))(x)


def test_what_is_no_function_policy_or_name():
    with pytest.raises(InvalidArgumentError, match="this cannot be called"):
        kr.checkpoint(3)
    with pytest.raises(InvalidArgumentError, match="is not a policy"):
        kr.checkpoint(ops.sin, policy="all")
    with pytest.raises(InvalidArgumentError, match=r"policy=save_names .* call it, such as"):
        kr.checkpoint(ops.sin, policy=kr.policies.save_names)
    with pytest.raises(InvalidArgumentError, match=r"takes \(_\), and .* def policy\("):
        kr.checkpoint(ops.sin, policy=lambda _: True)
    x = ops.convert_to_tensor(X)
    with pytest.raises(InvalidArgumentError, match="give a name"):
        kr.checkpoint_name(x, "")
    with pytest.raises(InvalidArgumentError, match="a list cannot be marked"):
        kr.checkpoint_name([x], "half")
    np.testing.assert_array_equal(ops.convert_to_numpy(kr.checkpoint_name(x, "half")), X)
