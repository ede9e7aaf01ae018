"""The smallest budget of a plan: what the leanest plan needs, found with two proofs."""

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


def test_the_smallest_budget_takes_two_proofs():
    asked = []

    def needed_bytes(model):
        asked.append(len(model.plan.checkpoints))
        return 1000 - 10 * asked[-1]

    options = {"batch_size": BATCH, "needed_bytes": needed_bytes}
    _, found = plan_and_prove(dense(), memory_budget="smallest", **options)
    leanest = len(found.checkpoints)
    assert leanest > 1
    assert asked == [0, leanest]
    assert found.compiled_peak_bytes == found.budget_bytes == 1000 - 10 * leanest
    assert found.plain_peak_bytes == 1000


def test_the_plain_model_may_need_least():
    options = {"batch_size": BATCH, "needed_bytes": lambda model: 7 + len(model.plan.checkpoints)}
    _, found = plan_and_prove(dense(), memory_budget="smallest", **options)
    assert (found.checkpoints, found.budget_bytes) == ((), 7)
