"""A layer that is checkpointed once, then called and changed in any order, does what its plain twin
does.
"""

from __future__ import annotations

import keras
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import keras_recompute as kr

from .layer_kinds import LAYERS, input_of, layer_of
from .layer_mutations import change, changes_of
from .passes import assert_alike, attempt
from .profile import settings_for
from .wrappers import POLICIES

pytestmark = pytest.mark.long
PLAIN_POLICIES = {
    name: POLICIES[name] for name in ("save_nothing", "save_everything", "save_matmuls")
}


class LayerBesideTwin(RuleBasedStateMachine):
    """Both are made alike, changed alike and called alike; only one is checkpointed."""

    @initialize(
        kind=st.sampled_from(sorted(LAYERS)), policy=st.sampled_from(sorted(PLAIN_POLICIES))
    )
    def make(self, kind: str, policy: str) -> None:
        self.kind = kind
        self.layer, self.twin = layer_of(kind), layer_of(kind)
        self.ours = kr.checkpoint(self.layer, policy=PLAIN_POLICIES[policy])
        self.call(batch=2, training=True)

    @rule(batch=st.sampled_from([2, 3]), training=st.booleans())
    def call(self, batch: int, training: bool) -> None:
        x = input_of(self.kind, batch)
        plain = attempt(self.twin, self.twin, x, training=training)
        assert_alike(attempt(self.ours, self.layer, x, training=training), plain)

    @rule(data=st.data(), n=st.integers(0, 2), training=st.booleans())
    def change_and_call(self, data: st.DataObject, n: int, training: bool) -> None:
        change(
            data.draw(st.sampled_from(changes_of(self.layer)), "change"), [self.layer, self.twin], n
        )
        self.call(batch=2, training=training)

    @rule()
    def swap_weights(self) -> None:
        """What one has learnt the other can be given."""
        self.layer.set_weights(self.twin.get_weights())
        self.twin.set_weights(self.layer.get_weights())

    def teardown(self) -> None:
        keras.backend.clear_session()


LayerBesideTwin.TestCase.settings = settings_for(share=0.05, steps=6)
test_a_layer_beside_its_twin = LayerBesideTwin.TestCase
