"""The smallest budget of a plan: what the leanest plan needs, found with few proofs."""

import pytest

import keras_recompute as kr
from keras_recompute.models.plans.memory_plan import plan as plan_and_prove
from keras_recompute.planning import BudgetTooSmallError

from .test_memory_plan import BATCH, dense, plan, residual


@pytest.mark.parametrize("make", [dense, residual])
def test_the_smallest_budget_is_what_the_leanest_plan_needs(make):
    model, found = plan(make(), memory_budget="smallest", batch_size=BATCH)
    assert found.predicted_peak_bytes == found.budget_bytes
    assert isinstance(model, kr.Model)
    with pytest.raises(BudgetTooSmallError) as refused:
        plan(make(), memory_budget=found.budget_bytes - 1, batch_size=BATCH)
    assert refused.value.smallest_budget_bytes == found.budget_bytes


def test_the_smallest_budget_takes_three_proofs():
    asked = []

    def needed_bytes(model):
        asked.append(len(model.plan.checkpoints))
        return 1000 - asked[-1]

    options = {"batch_size": BATCH, "needed_bytes": needed_bytes}
    model = dense()
    _, found = plan_and_prove(model, memory_budget="smallest", **options)
    everywhere = len(kr.checkpointed(model, every=1).plan.checkpoints)
    assert asked[::2] == [0, everywhere]
    assert 1 < asked[1] < everywhere
    assert len(found.checkpoints) == everywhere
    assert found.compiled_peak_bytes == found.budget_bytes == 1000 - everywhere
    assert found.plain_peak_bytes == 1000


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
