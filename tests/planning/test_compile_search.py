"""What fits a budget by compiling few: the promises, against all needs known, and the number of
compilations counted.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import BudgetTooSmallError
from keras_recompute.planning.compile_search import LEANEST, cheapest_within_budget

from .cases import repeatable


def choose(plans, budget_bytes, prediction_error=0.1, known=()):
    """Return the number of the plan chosen from ``plans``, pairs of predicted and needed bytes, and
    what was compiled. The needs of the plans with the numbers ``known`` were found before.
    """
    compiled = []

    def needed_bytes(number):
        compiled.append(number)
        return plans[number][1]

    number = cheapest_within_budget(
        range(len(plans)),
        budget_bytes=budget_bytes,
        predicted_bytes=lambda n: plans[n][0],
        needed_bytes=needed_bytes,
        known={number: plans[number][1] for number in known},
        prediction_error=prediction_error,
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


HALVES = [(100 - 10 * n, 160 - 10 * n) for n in range(10)]  # predictions that are 60 too low


def test_without_a_known_error_the_search_goes_on_by_halves():
    # 50 is predicted by the sixth and needed by none; the seventh is tried, then the last half.
    with pytest.raises(BudgetTooSmallError) as refusal:
        choose(HALVES, 50, None)
    assert refusal.value.smallest_budget_bytes == 70
    # Of 80 the third is predicted to do, and then the fourth; the ninth does.
    assert choose(HALVES, 80, None) == (8, [2, 3, 7, 9, 8])
    # Where the prediction is right its neighbour is all that has to be compiled beside.
    right = [(need, need) for _, need in HALVES]
    assert choose(right, 120, None) == (4, [4, 3])


def test_what_is_known_is_not_compiled_again():
    assert choose(HALVES, 80, None, known=(7, 8)) == (8, [2, 3, 6])
    assert choose(HALVES, 80, None, known=(2, 3, 7, 8, 9)) == (8, [6])
    assert choose([(390, 391), (108, 108), (76, 77)], 100, known=(1,)) == (2, [2])


@repeatable
@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(1, 250), st.integers())
def test_by_halves_the_first_that_fits_is_found_whatever_the_predictions(needs, budget, seed):
    """Needs that fall are all that is asked for."""
    needs = sorted(set(needs), reverse=True)
    predicted = [300 - 20 * n - abs(seed) % 13 for n in range(len(needs))]
    plans = list(zip(predicted, needs))
    expected = sum(need > budget for need in needs)
    if expected == len(needs):
        with pytest.raises(BudgetTooSmallError) as refusal:
            choose(plans, budget, None)
        assert refusal.value.smallest_budget_bytes == needs[-1]
        return
    number, compiled = choose(plans, budget, None)
    assert number == expected
    assert number in compiled
    assert len(set(compiled)) == len(compiled)
