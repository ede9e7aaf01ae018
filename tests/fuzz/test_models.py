"""A Keras model with checkpoints, called and changed in any order, does what the plain model with
the same layers does.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning

from .layer_kinds import LAYERS, input_of, model_of
from .layer_mutations import change, changes_of
from .passes import assert_alike, attempt
from .profile import settings_for

pytestmark = pytest.mark.long
KINDS = sorted(LAYERS.keys() - {"embedding"})  # takes whole numbers
WAYS = {
    "after every layer": lambda model: kr.checkpointed(model, every=1),
    "after every other layer": lambda model: kr.checkpointed(model, every=2),
    "around all": kr.checkpoint,
}


class ModelBesidePlain(RuleBasedStateMachine):
    """The two share their layers, so that a change is made once; what a call moves is put back for
    the other.
    """

    @initialize(
        kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=3),
        way=st.sampled_from(sorted(WAYS)),
    )
    def make(self, kinds: list[str], way: str) -> None:
        self.plain = model_of(tuple(kinds))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RecomputeWarning
            )  # of models so small that nothing is saved
            self.ours = WAYS[way](self.plain)
        self.call(batch=2, training=True, graph=False)

    @rule(batch=st.sampled_from([2, 3]), training=st.booleans(), graph=st.booleans())
    def call(self, batch: int, training: bool, graph: bool) -> None:
        x, before = input_of("dense", batch), [v.numpy() for v in self.plain.variables]
        plain = attempt(_run(self.plain, graph), self.plain, x, training=training)
        for variable, value in zip(self.plain.variables, before):
            variable.assign(value)
        assert_alike(attempt(_run(self.ours, graph), self.plain, x, training=training), plain)

    @rule(data=st.data(), at=st.integers(0, 3), n=st.integers(0, 2), training=st.booleans())
    def change_and_call(self, data: st.DataObject, at: int, n: int, training: bool) -> None:
        layers = [layer for layer in self.plain.layers if layer.variables]
        layer = layers[at % len(layers)]
        change(data.draw(st.sampled_from(changes_of(layer)), f"change of {layer.name}"), [layer], n)
        self.call(batch=2, training=training, graph=False)

    @rule()
    def swap_weights(self) -> None:
        """The checkpointed model's weights are the plain model's, in the same order."""
        self.ours.set_weights([w + 0 for w in self.plain.get_weights()])
        assert [w.tobytes() for w in self.ours.get_weights()] == [
            w.tobytes() for w in self.plain.get_weights()
        ]

    def teardown(self) -> None:
        keras.backend.clear_session()


def _run(model: Any, graph: bool) -> Any:
    def run(x: tf.Tensor, training: bool) -> tf.Tensor:
        return model(x, training=training)

    return tf.function(run, autograph=False) if graph else run


ModelBesidePlain.TestCase.settings = settings_for(share=0.03, steps=5)
test_a_model_beside_the_plain_one = ModelBesidePlain.TestCase
