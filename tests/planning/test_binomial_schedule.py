"""The binomial schedule against its closed forms, by the machine, and against another
implementation of the optimum.
"""

from math import comb

import pytest
from checkpoint_schedules import Forward, Revolve
from checkpoint_schedules.multistage import optimal_steps_binomial
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import (
    Chain,
    binomial_plan,
    binomial_replayed_steps,
    longest_chain,
    simulate,
)
from keras_recompute.planning.oracles.binomial_schedule import binomial_replays_per_step

from .cases import repeatable


def run(steps, slots):
    return simulate(
        Chain.homogeneous(steps, state_bytes=1, activation_bytes=100),
        binomial_plan(steps, slots=slots),
    )


@pytest.mark.parametrize(
    ("slots", "replays", "steps"),
    [
        (0, 5, 1),
        (1, 1, 2),
        (1, 7, 8),
        (3, 2, 10),
        (63, 2, 2080),
        (22, 3, 2300),
        (13, 4, 2380),
        (10, 5, 3003),
        (8, 6, 3003),
    ],
)
def test_the_longest_chain_is_a_binomial_coefficient(slots, replays, steps):
    assert (
        longest_chain(slots=slots, replays_per_step=replays)
        == steps
        == comb(slots + replays, slots)
    )


@pytest.mark.parametrize(("slots", "replays"), [(63, 2), (22, 3), (13, 4), (10, 5), (8, 6)])
def test_2048_steps_need_these_slots_and_no_fewer(slots, replays):
    assert binomial_replays_per_step(2048, slots=slots) == replays
    assert binomial_replays_per_step(2048, slots=slots - 1) == replays + 1


def test_ten_steps_in_three_slots_by_hand():
    # r = 2, for C(3 + 2, 3) = 10 steps is the longest chain: 2 * 10 - C(5, 1) = 15 replays.
    outcome = run(10, 3)
    assert outcome.replayed_steps == binomial_replayed_steps(10, slots=3) == 15
    assert outcome.peak_bytes == 3 + 100


@pytest.mark.parametrize("steps", [1, 2, 3, 17, 100, 255, 256, 1000, 1023, 2047, 2048])
@pytest.mark.parametrize("slots", [2, 3, 5, 8, 13, 22, 63, 500, 2047, 3000])
def test_the_machine_counts_the_closed_form_up_to_2048_steps(steps, slots):
    r = next(r for r in range(steps) if comb(slots + r, slots) >= steps)
    expected = r * steps - (comb(slots + r, r - 1) if r else 0)
    outcome = run(steps, slots)
    assert outcome.replayed_steps == binomial_replayed_steps(steps, slots=slots) == expected
    assert outcome.peak_bytes == min(slots, steps - 1) + 100


@pytest.mark.parametrize("steps", [1, 2, 64, 200])
def test_one_slot_starts_from_the_beginning_each_time(steps):
    assert run(steps, 1).replayed_steps == steps * (steps - 1) // 2


@repeatable
@given(st.integers(1, 12), st.integers(0, 4))
def test_the_longest_chain_replays_no_step_more_than_r_times_and_one_more_step_does(slots, replays):
    steps = longest_chain(slots=slots, replays_per_step=replays)
    assert binomial_replays_per_step(steps, slots=slots) == replays
    assert binomial_replays_per_step(steps + 1, slots=slots) == replays + 1


def test_the_counts_are_the_optimum_of_another_implementation():
    for steps in range(1, 251):
        for slots in range(1, 21):
            # The oracle refuses more slots than it can use: steps - 1.
            expected = (
                optimal_steps_binomial(steps, min(slots, max(1, steps - 1))) if steps > 1 else 1
            )
            assert steps + binomial_replayed_steps(steps, slots=slots) == expected, (steps, slots)


@pytest.mark.parametrize("steps", [2, 3, 10, 33, 100, 250])
@pytest.mark.parametrize("slots", [1, 2, 3, 7, 20])
def test_the_plan_runs_as_many_steps_as_revolve(steps, slots):
    schedule = Revolve(steps, slots)
    counted = 0
    while not schedule.is_exhausted:
        action = next(schedule)
        counted += action.n1 - action.n0 if isinstance(action, Forward) else 0
    assert run(steps, slots).forward_steps == counted


@repeatable
@given(st.integers(1, 250), st.integers(1, 20))
def test_every_plan_passes_the_machine_and_keeps_to_its_slots(steps, slots):
    outcome = run(steps, slots)
    assert outcome.replayed_steps == binomial_replayed_steps(steps, slots=slots)
    assert outcome.peak_bytes == min(slots, steps - 1) + 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: binomial_plan(2, slots=0), "slots is 0 for 2 steps: .* give at least one slot"),
        (lambda: binomial_plan(0, slots=1), "steps is 0"),
        (lambda: binomial_plan(2, slots=-1), "slots is -1"),
        (lambda: binomial_replayed_steps(2, slots=0), "slots is 0 for 2 steps"),
        (lambda: longest_chain(slots=-1, replays_per_step=1), "slots is -1"),
        (lambda: longest_chain(slots=1, replays_per_step=-1), "replays_per_step is -1"),
    ],
)
def test_no_slot_no_plan(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_a_single_step_needs_no_slot():
    assert run(1, 0).peak_bytes == 100
