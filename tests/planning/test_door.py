"""The public door: exactly these names."""

from keras_recompute import planning


def test_the_public_names_are_exactly_these():
    assert sorted(planning.__all__) == [
        "BudgetTooSmallError",
        "Chain",
        "Outcome",
        "Plan",
        "binomial_plan",
        "binomial_replayed_steps",
        "longest_chain",
        "mixed_plan",
        "multilevel_plan",
        "optimal_plan",
        "predicted_peak_bytes",
        "section_lengths",
        "simulate",
        "uniform_plan",
        "uniform_plan_within",
    ]
