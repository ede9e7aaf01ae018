"""The largest batch within a budget, proven by compiling few."""

import pytest

from lstm_example.largest_batch import largest_within_budget


@pytest.mark.parametrize("error", [-0.08, -0.01, 0.0, 0.01, 0.08])
@pytest.mark.parametrize("fixed", [0, 700])
def test_the_largest_batch_is_proven_on_both_sides(error, fixed):
    asked = []

    def needed_bytes(batch):
        asked.append(batch)
        return fixed + round(13 * batch * (1 + error))

    expected = max((n for n in range(2000) if needed_bytes(n) <= 10_000), default=0)
    asked.clear()
    found = largest_within_budget(
        budget_bytes=10_000, predicted_bytes=lambda n: fixed + 13 * n, needed_bytes=needed_bytes
    )
    assert found == expected
    assert {found, found + 1} <= set(asked)
    assert len(asked) <= 4


def test_a_batch_of_one_may_be_too_much_and_the_search_ends():
    assert (
        largest_within_budget(
            budget_bytes=9, predicted_bytes=lambda n: 10 * n, needed_bytes=lambda n: 10 * n
        )
        == 0
    )
    assert (
        largest_within_budget(
            budget_bytes=9, predicted_bytes=lambda _: 1, needed_bytes=lambda _: 1, most=50
        )
        == 50
    )


def test_a_useless_prediction_still_ends_at_the_largest():
    asked = []

    def needed_bytes(batch):
        asked.append(batch)
        return batch**3

    assert (
        largest_within_budget(
            budget_bytes=10**6, predicted_bytes=lambda n: n, needed_bytes=needed_bytes
        )
        == 100
    )
    assert len(asked) < 30
