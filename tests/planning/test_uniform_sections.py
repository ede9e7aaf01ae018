"""Equal sections at one level and at several: lengths, stored states and replayed steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import (
    BudgetTooSmallError,
    Chain,
    multilevel_plan,
    section_lengths,
    simulate,
    uniform_plan,
    uniform_plan_within,
)
from keras_recompute.planning.actions import Advance, Backward, Free, Keep, Restore, Store

from .cases import repeatable


def chain_of(steps):
    return Chain.homogeneous(steps, state_bytes=2, activation_bytes=6)


def test_sections_of_the_published_example_are_equal():
    assert section_lengths(2048, 8) == (256,) * 8


def test_sections_that_cannot_be_equal_begin_at_i_times_n_over_k():
    # 10 * i // 4 for i in 0..4: 0, 2, 5, 7, 10
    assert section_lengths(10, 4) == (2, 3, 2, 3)


@repeatable
@given(st.integers(1, 3000), st.data())
def test_section_lengths_cover_the_steps_and_differ_by_one_at_most(steps, data):
    sections = data.draw(st.integers(1, steps))
    lengths = section_lengths(steps, sections)
    assert len(lengths) == sections
    assert sum(lengths) == steps
    assert max(lengths) - min(lengths) == (steps % sections > 0)


def test_one_checkpoint_step_by_step():
    assert uniform_plan(5, checkpoints=1).actions == (
        Store(0),
        Advance(0, 2),
        Keep(2, 5),
        Backward(2, 5),
        Restore(0),
        Free(0),
        Keep(0, 2),
        Backward(0, 2),
    )


def test_seven_checkpoints_on_2048_steps():
    outcome = simulate(chain_of(2048), uniform_plan(2048, checkpoints=7))
    assert outcome.peak_bytes == 7 * 2 + 256 * 6
    assert outcome.replayed_steps == 2048 - 256


def test_no_checkpoint_is_the_plain_pass():
    outcome = simulate(chain_of(2048), uniform_plan(2048, checkpoints=0))
    assert (outcome.peak_bytes, outcome.replayed_steps) == (2048 * 6, 0)


@repeatable
@given(st.integers(1, 300), st.data())
def test_k_checkpoints_hold_k_states_and_one_section_and_replay_all_but_the_last(steps, data):
    checkpoints = data.draw(st.integers(0, steps - 1))
    outcome = simulate(chain_of(steps), uniform_plan(steps, checkpoints=checkpoints))
    lengths = section_lengths(steps, checkpoints + 1)
    assert outcome.replayed_steps == steps - lengths[-1]
    assert outcome.peak_bytes == max(i * 2 + length * 6 for i, length in enumerate(lengths))


def test_the_fewest_checkpoints_within_a_budget():
    chain = chain_of(2048)
    # 8 sections need 7 * 2 + 256 * 6 = 1550 bytes, 7 sections 6 * 2 + 293 * 6 = 1770.
    assert uniform_plan_within(chain, budget_bytes=1550) == uniform_plan(2048, checkpoints=7)
    assert uniform_plan_within(chain, budget_bytes=1769) == uniform_plan(2048, checkpoints=7)
    assert uniform_plan_within(chain, budget_bytes=1770) == uniform_plan(2048, checkpoints=6)
    assert uniform_plan_within(chain, budget_bytes=10**6) == uniform_plan(2048, checkpoints=0)


def test_a_budget_that_no_uniform_plan_keeps_to_is_refused_with_the_smallest_that_would_do():
    chain = chain_of(100)
    # The best of ceil(100 / k) * 6 + (k - 1) * 2: 17 sections of 6 steps at most, 36 + 16 * 2 = 68.
    with pytest.raises(
        BudgetTooSmallError,
        match=r"budget_bytes is 67, too small for a uniform plan: .* is 68 bytes",
    ) as caught:
        uniform_plan_within(chain, budget_bytes=67)
    assert caught.value.smallest_budget_bytes == 68
    assert simulate(chain, uniform_plan_within(chain, budget_bytes=68)).peak_bytes == 68


def test_two_levels_on_2048_steps():
    # 8 sections of 256, each of 16 sections of 16 steps.
    outcome = simulate(chain_of(2048), multilevel_plan(2048, sections_per_level=(8, 16)))
    assert outcome.peak_bytes == (7 + 15) * 2 + 16 * 6
    assert outcome.replayed_steps == (2048 - 2048 // 8) + (2048 - 2048 // 16)


def test_three_levels_on_2048_steps():
    outcome = simulate(chain_of(2048), multilevel_plan(2048, sections_per_level=(8, 8, 4)))
    assert outcome.peak_bytes == (7 + 7 + 3) * 2 + 8 * 6
    assert outcome.replayed_steps == (2048 - 256) + (2048 - 256) + (2048 - 512)


@repeatable
@given(st.integers(1, 300), st.data())
def test_one_level_is_the_uniform_plan_and_levels_of_one_section_change_nothing(steps, data):
    sections = data.draw(st.integers(1, steps))
    plan = uniform_plan(steps, checkpoints=sections - 1)
    assert multilevel_plan(steps, sections_per_level=[sections]) == plan
    assert multilevel_plan(steps, sections_per_level=[1, sections, 1]) == plan
    assert multilevel_plan(steps, sections_per_level=[]) == uniform_plan(steps, checkpoints=0)


@repeatable
@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 20))
def test_any_levels_pass_the_machine_within_their_bound(levels, extra):
    product = 1
    for sections in levels:
        product *= sections
    steps = product + extra
    outcome = simulate(chain_of(steps), multilevel_plan(steps, sections_per_level=levels))
    longest = steps
    for sections in levels:
        longest = -(-longest // sections)
    assert outcome.peak_bytes <= sum(sections - 1 for sections in levels) * 2 + longest * 6
    assert outcome.replayed_steps < max(1, len(levels) * steps)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: section_lengths(3, 4),
            "4 sections do not fit in 3 steps, because each needs a step: give fewer",
        ),
        (lambda: section_lengths(0, 1), "steps is 0: .* at least 1"),
        (lambda: section_lengths(3, 0), "sections is 0: .* at least 1"),
        (lambda: uniform_plan(3, checkpoints=-1), "checkpoints is -1: .* at least 0"),
        (lambda: uniform_plan(3, checkpoints=3), "4 sections do not fit in 3 steps"),
        (lambda: uniform_plan_within(chain_of(3), budget_bytes=1.5), "budget_bytes is 1.5: "),
        (
            lambda: multilevel_plan(3, sections_per_level=(2, 2)),
            r"sections_per_level is \(2, 2\), which makes 4 sections of 3 st",
        ),
        (lambda: multilevel_plan(3, sections_per_level=(2, 0)), r"sections_per_level\[1\] is 0"),
        (lambda: multilevel_plan(0, sections_per_level=()), "steps is 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
