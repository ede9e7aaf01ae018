"""The public door: exactly these names, and clear words where names of 0.2 are used."""

import pytest

from keras_recompute import planning
from keras_recompute.errors import UnsupportedError


def test_the_public_names_are_exactly_these():
    assert sorted(planning.__all__) == [
        "BudgetTooSmallError",
        "Chain",
        "predicted_peak_bytes",
        "section_lengths",
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("Outcome", "Plan", "simulate", "uniform_plan", "uniform_plan_within", "multilevel_plan"),
        *("binomial_plan", "binomial_replayed_steps", "longest_chain", "mixed_plan"),
        "optimal_plan",
    ],
)
def test_a_retired_planner_can_be_imported_and_says_what_to_use(name):
    with pytest.warns(
        DeprecationWarning, match=rf"planning\.{name} has left .* keras_recompute.plan"
    ):
        retired = getattr(planning, name)
    assert not isinstance(0, retired)
    with pytest.raises(UnsupportedError, match=rf"planning\.{name} has left the package"):
        retired(4, checkpoints=1)


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'plans'"):
        _ = planning.plans
