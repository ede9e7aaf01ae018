"""The smallest budget of a plan: what the leanest plan needs, found with few proofs."""

import keras
import pytest

import keras_recompute as kr
from keras_recompute.models.keras_graph.cut_points import order_with_most_cuts, single_cuts
from keras_recompute.models.plans.checkpointed import graph_of
from keras_recompute.models.plans.memory_plan import plan as plan_and_prove
from keras_recompute.planning import BudgetTooSmallError

from .test_memory_plan import BATCH, WIDE, dense, plan, residual


@pytest.mark.parametrize("make", [dense, residual])
def test_the_smallest_budget_is_what_the_leanest_plan_needs(make):
    model, found = plan(make(), memory_budget="smallest", batch_size=BATCH)
    assert found.predicted_peak_bytes == found.budget_bytes
    assert isinstance(model, kr.Model)
    with pytest.raises(BudgetTooSmallError) as refused:
        plan(make(), memory_budget=found.budget_bytes - 1, batch_size=BATCH)
    assert refused.value.smallest_budget_bytes == found.budget_bytes


def root_of_layers(model):
    return round(len(model.layers) ** 0.5)


def test_the_smallest_budget_takes_four_proofs():
    asked = []

    def needed_bytes(model):
        asked.append(len(model.plan.checkpoints))
        return 1000 - asked[-1]

    options = {"batch_size": BATCH, "needed_bytes": needed_bytes}
    model = dense()
    _, found = plan_and_prove(model, memory_budget="smallest", **options)
    everywhere = len(kr.checkpointed(model, every=1).plan.checkpoints)
    usual = len(kr.checkpointed(model, every=root_of_layers(model)).plan.checkpoints)
    assert asked[::2] + asked[3:] == [0, everywhere, usual]
    assert 1 < asked[1] < everywhere
    assert len(found.checkpoints) == everywhere
    assert found.compiled_peak_bytes == found.budget_bytes == 1000 - everywhere
    assert found.plain_peak_bytes == 1000


def test_checkpoints_after_the_root_of_all_layers_may_need_least():
    model = dense()
    usual = kr.checkpointed(model, every=root_of_layers(model)).plan.checkpoints

    def needed_bytes(candidate):
        return 100 if candidate.plan.checkpoints == usual else 1000

    options = {"batch_size": BATCH, "needed_bytes": needed_bytes}
    for budget in "smallest", 100:
        _, found = plan_and_prove(model, memory_budget=budget, **options)
        assert (found.checkpoints, found.compiled_peak_bytes) == (usual, 100)


def test_checkpoints_everywhere_are_tried_before_a_budget_is_refused():
    model = dense()
    everywhere = len(kr.checkpointed(model, every=1).plan.checkpoints)

    def needed_bytes(candidate):
        return 100 if len(candidate.plan.checkpoints) == everywhere else 1000

    options = {"batch_size": BATCH, "needed_bytes": needed_bytes}
    _, found = plan_and_prove(model, memory_budget=100, **options)
    assert len(found.checkpoints) == everywhere
    with pytest.raises(BudgetTooSmallError) as refused:
        plan_and_prove(model, memory_budget=99, **options)
    assert refused.value.smallest_budget_bytes == 100


def test_the_plain_model_may_need_least():
    options = {"batch_size": BATCH, "needed_bytes": lambda model: 7 + len(model.plan.checkpoints)}
    _, found = plan_and_prove(dense(), memory_budget="smallest", **options)
    assert (found.checkpoints, found.budget_bytes) == ((), 7)


def encoder_decoder():
    """Layers before a decoder whose blocks read the end of an encoder as well."""
    x, y = inputs = keras.Input((WIDE,)), keras.Input((WIDE,))

    def layer(name, x):
        return keras.layers.Dense(WIDE, "tanh", name=name)(x)

    for number in range(6):
        x = layer(f"encoder_{number}", x)
    for number in range(4):
        y = layer(f"before_{number}", y)
    for number in range(4):
        y = layer(f"decoder_{number}", keras.layers.Add()([y, x]))
    return keras.Model(inputs, keras.layers.Dense(1)(y))


def test_an_encoder_is_planned_as_its_decoder_is():
    model = encoder_decoder()
    calls = graph_of(model).calls
    ordered = [calls[n] for n in order_with_most_cuts(calls)]
    encoder, before = [f"encoder_{n}" for n in range(6)], [f"before_{n}" for n in range(4)]
    assert [call.operation.name for call in ordered[:10]] == encoder + before
    # Two for each of four blocks, and the head. Keras runs before_0 behind encoder_2.
    assert len(single_cuts(ordered)) == 6 + 2 * 4 + 1
    assert len(single_cuts(calls)) == 3 + 2 * 4 + 1

    planned, found = plan(model, memory_budget="smallest", batch_size=BATCH)
    assert set(found.checkpoints).intersection(encoder[3:])
    assert planned.plan.checkpoints == found.checkpoints
