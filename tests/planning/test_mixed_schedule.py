"""States and activations mixed under a budget: the paper's headline, the full programme as an
oracle, and the promises.
"""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import (
    BudgetTooSmallError,
    Chain,
    binomial_replayed_steps,
    mixed_plan,
    simulate,
)

from .cases import repeatable

# The paper's relative sizes: activations five times the state, a backward pass twice the forward
# pass.
PAPER = Chain.homogeneous(
    1000, state_bytes=1, activation_bytes=5, forward_seconds=1, backward_seconds=2
)


def run(chain, budget_bytes):
    outcome = simulate(chain, mixed_plan(chain, budget_bytes=budget_bytes))
    assert outcome.peak_bytes <= budget_bytes
    return outcome


@pytest.mark.parametrize(
    ("percent", "replayed_steps", "time_ratio"),
    # Of 1000 * 5 bytes. Plain time is 1000 * (1 + 2), so the ratio is 1 + replayed / 3000.
    [(5, 953, 1.33), (2, 995, 1.34)],
)
def test_1000_steps_in_a_fraction_of_the_memory_cost_a_third_more_time(
    percent, replayed_steps, time_ratio
):
    # As in the paper, the activations of the one step in work (5 bytes) are not part of the budget.
    outcome = run(PAPER, percent * 50 + 5)
    assert outcome.replayed_steps == replayed_steps
    assert outcome.seconds == 3000 + replayed_steps
    assert outcome.seconds <= time_ratio * PAPER.plain_seconds


@pytest.mark.parametrize(
    # All bytes within the budget, the step in work included. The optimum, computed apart with every
    # split: 954, 1029, 1772.
    ("percent", "replayed_steps"),
    [(5, 954), (2, 1029), (1, 1773)],
)
def test_the_same_with_the_step_in_work_inside_the_budget(percent, replayed_steps):
    outcome = run(PAPER, percent * 50)
    assert outcome.replayed_steps == replayed_steps
    assert outcome.seconds == 3000 + replayed_steps


def test_the_same_with_the_chains_input_outside_the_budget():
    # The input of the chain is alive whatever the plan (see Chain), so its byte is no part of the 2
    # %.
    given = replace(PAPER, state_bytes=(0, *PAPER.state_bytes[1:]))
    outcome = simulate(given, mixed_plan(PAPER, budget_bytes=100 + 1))
    assert outcome.peak_bytes == 100
    assert outcome.replayed_steps == 1009
    assert outcome.seconds <= 1.34 * PAPER.plain_seconds


def test_sections_that_run_twice_by_hand():
    # State 1, activation 5, 10 steps. Room for sections in 18 bytes: 18 // 5, 17 // 5, 16 // 5, 15
    # // 5, all of them 3 steps. The last keeps its 3; the first takes what is then missing, 10 - 3
    # * 3 = 1.
    chain = Chain.homogeneous(10, state_bytes=1, activation_bytes=5)
    assert run(chain, 18).replayed_steps == 1 + 3 + 3
    assert run(chain, 18).peak_bytes == 3 * 1 + 3 * 5
    # 17 // 5 = 3, 16 // 5 = 3, 15 // 5 = 3, 14 // 5 = 2: one step less for the last.
    assert run(chain, 17).replayed_steps == 10 - 2
    # 20 // 5 = 4, 19 // 5 = 3, 18 // 5 = 3 would do too, in more memory.
    assert mixed_plan(chain, budget_bytes=20) == mixed_plan(chain, budget_bytes=18)


@pytest.mark.parametrize(
    ("less", "more", "replayed_steps"), [(14, 15, 379), (17, 18, 229), (55, 57, 57), (58, 59, 56)]
)
def test_a_budget_that_buys_nothing_changes_nothing(less, more, replayed_steps):
    # From 52 bytes on no step runs more than twice; below, the table says so.
    chain = Chain.homogeneous(60, state_bytes=3, activation_bytes=7)
    assert mixed_plan(chain, budget_bytes=less) == mixed_plan(chain, budget_bytes=more)
    assert run(chain, less).replayed_steps == run(chain, more).replayed_steps == replayed_steps


def test_a_window_keeps_the_promise_that_more_is_never_slower():
    chain = Chain.homogeneous(600, state_bytes=2, activation_bytes=3)
    replayed = [run(chain, budget).replayed_steps for budget in (20, 21, 22, 40, 41)]
    assert replayed == sorted(replayed, reverse=True)


def test_up_to_512_steps_every_split_is_tried():
    # The optimum, computed apart; looking near the last split only would find 624.
    chain = Chain.homogeneous(400, state_bytes=2, activation_bytes=3)
    assert run(chain, 47).replayed_steps == 623


def test_everything_fits():
    assert run(PAPER, 5000).replayed_steps == 0
    assert run(PAPER, 4999).replayed_steps > 0


@lru_cache(maxsize=None)
def fewest_replays(steps, memory, state, activation):
    """The recurrence as it stands in the module's docstring, every split tried."""
    if steps * activation <= memory:
        return 0
    if memory < activation:
        return float("inf")
    best = fewest_replays(steps - 1, memory - activation, state, activation)
    for y in range(1, steps):
        if memory >= state:
            after = fewest_replays(steps - y, memory - state, state, activation)
            best = min(best, y + fewest_replays(y, memory, state, activation) + after)
    return best


@pytest.mark.parametrize(
    ("state", "activation"), [(1, 5), (2, 3), (3, 7), (1, 1), (1, 20), (4, 3), (9, 2), (6, 10)]
)
def test_the_full_programme_finds_nothing_better(state, activation):
    for steps in (1, 2, 3, 7, 16, 25):
        chain = Chain.homogeneous(steps, state_bytes=state, activation_bytes=activation)
        for memory in range(0, 60, 1 if steps < 16 else 3):
            best = fewest_replays(steps, memory, state, activation)
            if best == float("inf"):
                with pytest.raises(BudgetTooSmallError):
                    mixed_plan(chain, budget_bytes=memory)
            else:
                assert run(chain, memory).replayed_steps == best, (steps, memory)
    fewest_replays.cache_clear()


def smallest_budget(chain):
    try:
        mixed_plan(chain, budget_bytes=0)
    except BudgetTooSmallError as error:
        return error.smallest_budget_bytes
    return 0


@repeatable
@given(
    st.integers(1, 60),
    st.integers(0, 40),
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(0, 9),
    st.data(),
)
def test_a_larger_budget_never_replays_more(steps, state, activation, working, fixed, data):
    chain = Chain.homogeneous(
        steps,
        state_bytes=state,
        activation_bytes=activation,
        working_bytes=working,
        fixed_bytes=fixed,
    )
    smallest = smallest_budget(chain)
    if smallest:
        with pytest.raises(BudgetTooSmallError):
            mixed_plan(chain, budget_bytes=smallest - 1)
    less = data.draw(st.integers(smallest, chain.plain_peak_bytes), label="less")
    more = data.draw(st.integers(less, chain.plain_peak_bytes + 1), label="more")
    assert (
        run(chain, more).replayed_steps
        <= run(chain, less).replayed_steps
        <= run(chain, smallest).replayed_steps
    )


@pytest.mark.parametrize(("state", "activation"), [(1237, 3331), (31000, 30000), (7, 1999)])
def test_sizes_without_a_common_unit_are_never_slower_than_binomial(state, activation):
    chain = Chain.homogeneous(300, state_bytes=state, activation_bytes=activation)
    for slots in (1, 2, 5, 11):
        outcome = run(chain, slots * state + activation)
        assert outcome.replayed_steps <= binomial_replayed_steps(300, slots=slots)


@pytest.mark.long
def test_2048_steps_with_a_window_stay_near_the_bound():
    # State 1, activation 3, 100 bytes. A step replayed at most r times belongs to a chain of at
    # most N(m, r) steps, where N(m, 0) = m // 3 and N(m, r) = max(1 + N(m - 3, r), N(m, r - 1) +
    # N(m - 1, r)): no plan has fewer replays than this sum.
    reach = [[m // 3 for m in range(101)]]
    while reach[-1][100] < 2048:
        row = []
        for m in range(101):
            row.append(max(1 + row[m - 3], reach[-1][m] + row[m - 1]) if m >= 3 else 0)
        reach.append(row)
    bound = sum(2048 - row[100] for row in reach[:-1])
    chain = Chain.homogeneous(2048, state_bytes=1, activation_bytes=3)
    assert bound <= run(chain, 100).replayed_steps <= bound + 0.02 * chain.plain_seconds


def test_the_budget_must_hold_one_state_and_one_step():
    with pytest.raises(
        BudgetTooSmallError,
        match=r"budget_bytes is 5, too small for any plan: the smallest that suffices is 6 bytes",
    ) as caught:
        mixed_plan(PAPER, budget_bytes=5)
    assert (caught.value.budget_bytes, caught.value.smallest_budget_bytes) == (5, 6)
    assert isinstance(caught.value, InvalidArgumentError)


@pytest.mark.parametrize(
    ("chain", "budget_bytes", "message"),
    [
        (
            Chain([1, 2], [1, 1], [1, 1], [1, 1]),
            9,
            "the steps of the chain differ in size, .* use optimal_plan",
        ),
        (PAPER, -1, "budget_bytes is -1"),
        (PAPER, 1e9, "budget_bytes is 1000000000.0"),
    ],
)
def test_what_it_is_not_for_is_refused(chain, budget_bytes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        mixed_plan(chain, budget_bytes=budget_bytes)
