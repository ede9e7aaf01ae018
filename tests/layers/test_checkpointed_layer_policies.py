"""The policy of a checkpointed layer is saved with the layer, or refused in one line."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError
from keras_recompute.layers.checkpointed_layer import CheckpointedLayer

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint of .* saves no memory")

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


@keras.saving.register_keras_serializable(package="tests.checkpointed_layer_policies")
def save_products(value):
    return value.op.type == "MatMul"


@pytest.mark.parametrize(
    "policy",
    [
        kr.policies.save_matmuls_without_batch_dims,
        kr.policies.either(kr.policies.save_names("a", "b"), kr.policies.save_everything),
        kr.policies.save_and_offload_names(save=("a",), offload=("b",)),
        save_products,
    ],
    ids=["matmuls", "either", "offload", "function"],
)
def test_the_policy_is_saved_with_the_layer(policy):
    ours = kr.checkpoint(keras.layers.Dense(2), policy=policy)
    ours.build((None, 4))
    for back in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        type(ours).from_config(ours.get_config()),
    ):
        assert isinstance(back, CheckpointedLayer)
        assert back.policy == policy
        assert back.kernel.shape == (4, 2)


def test_a_policy_that_cannot_be_found_again_is_refused_when_it_is_saved(tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), kr.checkpoint(keras.layers.Dense(2, name="d"), policy=lambda _: True)]
    )
    with pytest.raises(
        UnsupportedError, match=r"'d' is recomputed by the policy .* cannot be loaded from a file"
    ):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")


def test_two_policies_for_one_layer_in_a_graph_are_refused_when_they_are_saved():
    layer = keras.layers.Dense(4, name="twice")
    inputs = keras.Input((4,))
    model = keras.Model(
        inputs, kr.checkpoint(layer, policy=kr.policies.save_matmuls)(kr.checkpoint(layer)(inputs))
    )
    np.testing.assert_allclose(model(X), layer(layer(X)), rtol=1e-6)
    with pytest.raises(UnsupportedError, match="'twice' is checkpointed by two policies"):
        model.get_config()
