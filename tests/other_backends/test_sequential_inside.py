"""Sequential models inside a functional one are checkpointed between their layers."""

import keras
import numpy as np
import pytest
from plain_oracle import assert_trains_as_plain

import keras_recompute as kr
from keras_recompute.liveness import profile

L = keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 16, 8)).astype("float32")
IDS = RNG.integers(0, 5, (16, 6)).astype("float32")


def dense(count, name="inner"):
    return [L.Dense(8, "gelu", name=f"{name}_{number}") for number in range(count)]


def around(inner):
    """Return a model with layers before and behind ``inner``."""
    inputs = keras.Input((8,))
    x = inner(L.Dense(8, "tanh", name="stem")(inputs))
    return keras.Model(inputs, L.Dense(8, name="head")(x))


def backbone(count=4):
    return around(keras.Sequential([keras.Input((8,)), *dense(count)], name="backbone"))


def nested():
    innermost = keras.Sequential([keras.Input((8,)), *dense(2, "innermost")])
    functional = keras.Model(innermost.inputs, innermost(innermost.inputs[0]))
    last = L.Dense(8, "tanh", activity_regularizer="l2", kernel_regularizer="l1", name="last")
    # It is built where it is called first.
    return around(keras.Sequential([*dense(2), functional, last]))


def with_state():
    layers = [L.Dense(8, "gelu"), L.BatchNormalization(), L.Dropout(0.3)]
    return keras.Sequential([keras.Input((8,)), *layers])


def shared_frozen_and_as_in_inference():
    shared, frozen, inferring = with_state(), with_state(), with_state()
    frozen.trainable = False
    inputs = keras.Input((8,))
    x = shared(frozen(L.Dense(8, "tanh")(inputs)), training=True)
    return keras.Model(inputs, L.Dense(8)(inferring(shared(x), training=False)))


def with_another_type_and_a_mask():
    ids, embedding = keras.Input((6,), dtype="int32"), L.Embedding(5, 8, mask_zero=True)
    inner = keras.Sequential([ids, embedding, L.Dense(8, "tanh")])
    inputs = keras.Input((6,), dtype="float32")
    return keras.Model(inputs, L.Dense(8)(L.LSTM(8)(inner(inputs))))


@keras.saving.register_keras_serializable(package="tests.sequential")
class Doubled(keras.Sequential):
    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


def with_its_own_call():
    return around(Doubled([keras.Input((8,)), *dense(2)], name="doubled"))


@pytest.mark.parametrize(
    ("build", "x", "inlined"),
    [
        (nested, X, ["inner_0", "innermost_1", "last"]),
        (shared_frozen_and_as_in_inference, X, ["dropout_1"]),
        (with_another_type_and_a_mask, IDS, ["embedding"]),
        (with_its_own_call, X, ["doubled"]),
    ],
)
def test_it_trains_as_the_plain_model(build, x, inlined):
    def place(model):
        new = kr.checkpointed(model, every=1)
        assert set(inlined) <= set(new.plan.checkpoints)
        return new

    assert_trains_as_plain(build, x, Y, place, optimizer="sgd")


def test_its_layers_are_counted_and_save_memory():
    """Eight layers, of which the plain step keeps two values each, and ours three in all."""
    model, x = backbone(8), np.zeros((4096, 8), "float32")
    ours = kr.checkpointed(model, every=3)
    assert len(ours.plan.checkpoints) == 3
    for each in (model, ours):
        each.compile("sgd", "mse")
    assert profile(ours, x, x).peak_bytes < 0.75 * profile(model, x, x).peak_bytes


def test_a_file_has_the_checkpoints(tmp_path):
    model = kr.checkpointed(backbone(), every=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.plan.checkpoints == model.plan.checkpoints == ("inner_0", "inner_2")
    outputs = [keras.ops.convert_to_numpy(each(X)) for each in (model, loaded)]
    np.testing.assert_allclose(*outputs, rtol=1e-6)


def test_a_file_of_0_3_0_has_the_checkpoints_that_it_had():
    """Positions in it count a sequential model as one call."""
    inputs = keras.Input((8,))
    functional = keras.Model(inputs, L.Dense(8, name="in_functional")(inputs))
    plain = keras.Model(inputs, backbone()(functional(inputs)))
    config = kr.Model(plain.inputs, plain.outputs).get_config()
    # The inputs of two functional models, and what is in them.
    old = kr.Model.from_config({**config, "is_open": True, "checkpoints": [[1, 4]]})
    assert old.plan.checkpoints == ("in_functional", "backbone")
    again = kr.Model.from_config(old.get_config())
    assert again.plan.checkpoints == old.plan.checkpoints


def test_layers_that_it_gets_later_are_not_left_out():
    plain = backbone()
    model = kr.checkpointed(plain, every=2)
    plain.get_layer("backbone").add(L.Dense(8, name="added"))
    model.compile("sgd", "mse")
    with pytest.raises(kr.errors.UnsupportedError, match="'backbone' were changed by add"):
        model.fit(X, Y, verbose=0)


def test_names_of_its_layers_are_refused_as_those_of_a_functional_model():
    with pytest.raises(kr.errors.InvalidArgumentError, match="a layer inside 'backbone', a Seq"):
        kr.checkpointed(backbone(), at="inner_1")


def test_a_sequential_model_with_a_call_of_its_own_runs_it():
    model = Doubled([keras.Input((8,)), *dense(4)], name="doubled")
    with pytest.raises(kr.errors.InvalidArgumentError, match="Doubled with a call method of its"):
        kr.checkpointed(model, every=2)
