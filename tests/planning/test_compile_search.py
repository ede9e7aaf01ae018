"""What fits a budget by compiling few: the promises, against all needs known, and the number of
compilations counted.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import BudgetTooSmallError
from keras_recompute.planning.compile_search import (
    LEANEST,
    first_within_budget,
    largest_within_budget,
)

from .cases import repeatable


def choose(plans, budget_bytes):
    """Return the number of the plan chosen from ``plans``, pairs of predicted and needed bytes, and
    what was compiled.
    """
    compiled = []

    def needed_bytes(number):
        compiled.append(number)
        return plans[number][1]

    number = first_within_budget(
        range(len(plans)),
        budget_bytes=budget_bytes,
        predicted_bytes=lambda n: plans[n][0],
        needed_bytes=needed_bytes,
    )
    return number, compiled


def test_the_fastest_that_fits_is_taken_and_few_are_compiled():
    plans = [(390, 391), (172, 172), (108, 108), (76, 77), (61, 61), (53, 53)]
    # 390 and 172 are far above 128. 120 is predicted to fit, and does.
    assert choose(plans, 128) == (2, [2])
    # 108 is within a tenth of 100, so it is compiled; it does not fit.
    assert choose(plans, 100) == (3, [2, 3])
    assert choose(plans, 1000) == (0, [0])


def test_a_prediction_is_never_believed():
    # The second is predicted to fit and does not; the third is predicted to be just too large and
    # fits.
    plans = [(300, 300), (99, 104), (98, 97)]
    assert choose(plans, 100) == (2, [1, 2])
    assert choose([(105, 99)], 100) == (0, [0])


def test_what_is_predicted_to_need_as_much_as_one_that_did_not_fit_is_passed_over():
    plans = [(100, 101), (100, 101), (101, 102), (90, 91)]
    assert choose(plans, 100) == (3, [0, 3])


def test_a_refusal_says_the_smallest_budget_that_would_do():
    plans = [(90, 91), (50, 52), (40, 43), (41, 42), (44, 45), (60, 61)]
    with pytest.raises(BudgetTooSmallError) as refusal:
        choose(plans, 10)
    assert refusal.value.smallest_budget_bytes == 42
    assert choose(plans, 42)[0] == 3


def test_a_budget_is_a_whole_number_of_bytes():
    with pytest.raises(InvalidArgumentError, match=r"budget_bytes is 1\.5"):
        choose([(1, 1)], 1.5)


@repeatable
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(-9, 9)), min_size=1, max_size=12),
    st.integers(1, 250),
)
def test_whatever_the_predictions(shares, budget_bytes):
    plans = [
        (predicted, max(1, predicted + predicted * error // 100)) for predicted, error in shares
    ]
    try:
        number, compiled = choose(plans, budget_bytes)
    except BudgetTooSmallError as error:
        smallest = error.smallest_budget_bytes
        assert smallest > budget_bytes
        least = sorted(plans)[:LEANEST]
        assert smallest <= min(needed for _, needed in least)
        again, _ = choose(plans, smallest)
        assert plans[again][1] <= smallest
        return
    assert plans[number][1] <= budget_bytes
    assert compiled[-1] == number
    assert len(set(compiled)) == len(compiled)
    assert all(plans[n][1] > budget_bytes for n in compiled[:-1])
    # Of the faster ones that would fit, none but those predicted to need as much as one that does
    # not.
    for faster in range(number):
        if plans[faster][1] <= budget_bytes and faster not in compiled:
            assert any(
                plans[n][0] <= plans[faster][0] and plans[n][1] > budget_bytes for n in compiled
            )


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
