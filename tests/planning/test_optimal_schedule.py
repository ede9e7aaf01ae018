"""The fastest plan within a budget, against a search that shares nothing with it but the rules of
the machine.
"""

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import (
    BudgetTooSmallError,
    Chain,
    mixed_plan,
    optimal_plan,
    simulate,
    uniform_plan,
)
from keras_recompute.planning.oracles.pareto_frontier import ParetoFrontier
from keras_recompute.planning.single_replay import (
    replay_seconds,
    section_actions,
    sections_peak_bytes,
    single_replay_sections,
)

from .cases import repeatable, uneven_chains


def fewest_forward_seconds(chain, budget_bytes):
    """Uniform-cost search over all that can be in memory, one step or one drop at a time; None
    where nothing fits.
    """
    steps, room = len(chain), budget_bytes - chain.fixed_bytes
    start = (steps, 0, frozenset(), frozenset())
    known, queue, ticket = {start: 0}, [(0, 0, start)], 0
    while queue:
        seconds, _, state = heappop(queue)
        if seconds > known[state]:
            continue
        unfinished, hand, stored, kept = state
        if unfinished == 0:
            return seconds
        held = sum(chain.state_bytes[i] for i in stored) + sum(
            chain.activation_bytes[i] for i in kept
        )
        following = [(0, held, (unfinished, hand, stored - {i}, kept)) for i in stored]
        following += [(0, held, (unfinished, i, stored, kept)) for i in stored]
        if hand is not None and hand < unfinished:
            cost, during = chain.forward_seconds[hand], held + chain.working_bytes[hand]
            following.append(
                (0, held + chain.state_bytes[hand], (unfinished, hand, stored | {hand}, kept))
            )
            following.append((cost, during, (unfinished, hand + 1, stored, kept)))
            if hand not in kept:
                more = during + chain.activation_bytes[hand]
                following.append((cost, more, (unfinished, hand + 1, stored, kept | {hand})))
        if unfinished - 1 in kept:
            during = held + chain.working_bytes[unfinished - 1]
            following.append((0, during, (unfinished - 1, None, stored, kept - {unfinished - 1})))
        for cost, needed, after in following:
            if needed <= room and seconds + cost < known.get(after, float("inf")):
                known[after] = seconds + cost
                ticket += 1
                heappush(queue, (seconds + cost, ticket, after))
    return None


def assert_agrees_with_the_search(chain, budget_bytes):
    best = fewest_forward_seconds(chain, budget_bytes)
    if best is None:
        with pytest.raises(BudgetTooSmallError) as caught:
            optimal_plan(chain, budget_bytes=budget_bytes)
        assert caught.value.smallest_budget_bytes > budget_bytes
        return None
    outcome = simulate(chain, optimal_plan(chain, budget_bytes=budget_bytes))
    assert outcome.peak_bytes <= budget_bytes
    assert outcome.seconds == best + sum(chain.backward_seconds)
    return outcome


@pytest.mark.long
@repeatable
@given(uneven_chains(most=5), st.data())
def test_the_search_never_beats_the_planner_on_up_to_5_steps(chain, data):
    assert_agrees_with_the_search(
        chain, data.draw(st.integers(0, chain.plain_peak_bytes), label="budget")
    )


# At most this part of the way from the smallest budget to that of the plain pass: with more room
# the search takes minutes.
SIX_TO_EIGHT = [
    (6, 0, 2),
    *(
        pytest.param(*c, marks=pytest.mark.long)
        for c in [(6, 1, 3), (6, 2, 4), (7, 3, 4), (7, 4, 5), (8, 0, 9)]
    ),
]


@pytest.mark.parametrize(("steps", "seed", "part"), SIX_TO_EIGHT)
def test_the_search_never_beats_the_planner_on_6_to_8_steps(steps, seed, part):
    chain = random_chain(steps, seed)
    smallest = smallest_budget(chain)
    assert_agrees_with_the_search(chain, smallest - 1)
    assert_agrees_with_the_search(chain, smallest)
    assert_agrees_with_the_search(chain, smallest + (chain.plain_peak_bytes - smallest) // part)


def random_chain(steps, seed):
    draw = random.Random(seed).randint
    return Chain(
        state_bytes=[draw(1, 9) for _ in range(steps)],
        activation_bytes=[draw(3, 30) for _ in range(steps)],
        forward_seconds=[draw(1, 9) for _ in range(steps)],
        backward_seconds=[draw(2, 18) for _ in range(steps)],
        working_bytes=[draw(0, 5) for _ in range(steps)],
        fixed_bytes=7,
    )


def smallest_budget(chain):
    try:
        optimal_plan(chain, budget_bytes=0)
    except BudgetTooSmallError as error:
        return error.smallest_budget_bytes
    return 0


def test_freeing_a_checkpoint_and_making_it_again_is_found_where_it_pays():
    # Step 0 is dear (10 s) and state 1 (2 bytes) saves running it again; but beside states 0 and 1
    # there is no room for the 18 bytes of step 2: 1 + 2 + 18 > 20. States 2 to 4 never fit beside
    # state 0 and 14 bytes of activations.
    chain = Chain([1, 2, 9, 9, 9], [19, 14, 18, 14, 14], [10, 1, 1, 1, 1], [0] * 5)
    # State 1 is stored until step 2 is to be kept: 13 to reach step 4, 2 to reach step 3 from state
    # 1, 1 to reach step 2 from it, then, state 1 gone, 10 to reach step 1.
    assert assert_agrees_with_the_search(chain, 20).seconds == chain.plain_seconds + 13 + 2 + 1 + 10
    # A persistent plan cannot store state 1 at all and runs step 0 each time: 13, 12, 11, 10.
    persistent = [point for point in ParetoFrontier(chain).points if point.peak_bytes <= 20][-1]
    assert persistent.replay_seconds == 13 + 12 + 11 + 10


@pytest.mark.long
@settings(repeatable, max_examples=25)
@given(uneven_chains(least=1, most=7), st.data())
def test_a_larger_budget_is_never_slower_and_changes_nothing_if_it_buys_nothing(chain, data):
    budgets = st.integers(0, chain.plain_peak_bytes + 2)
    less, more = sorted([data.draw(budgets, label="one"), data.draw(budgets, label="another")])
    assert_monotone(chain, less, more)


@pytest.mark.parametrize("steps", [9, 16, 30, 60])
def test_a_larger_budget_is_never_slower_on_longer_chains(steps):
    chain = random_chain(steps, seed=steps)
    smallest, largest = smallest_budget(chain), chain.plain_peak_bytes
    with pytest.raises(BudgetTooSmallError):
        optimal_plan(chain, budget_bytes=smallest - 1)
    budgets = [smallest + (largest - smallest) * part // 40 for part in range(41)]
    for less, more in zip(budgets, budgets[1:]):
        assert_monotone(chain, less, more)
    assert simulate(chain, optimal_plan(chain, budget_bytes=largest)).replayed_steps == 0
    assert simulate(chain, optimal_plan(chain, budget_bytes=largest - 1)).replayed_steps > 0


def assert_monotone(chain, less, more):
    smallest = smallest_budget(chain)
    if less < smallest:
        with pytest.raises(BudgetTooSmallError):
            optimal_plan(chain, budget_bytes=less)
        return
    lean = optimal_plan(chain, budget_bytes=less)
    rich = optimal_plan(chain, budget_bytes=more)
    lean_outcome, rich_outcome = simulate(chain, lean), simulate(chain, rich)
    assert lean_outcome.peak_bytes <= less
    assert rich_outcome.peak_bytes <= more
    assert (
        rich_outcome.seconds < lean_outcome.seconds
        or rich_outcome.peak_bytes == lean_outcome.peak_bytes
    )


def least_replay_seconds(chain, begin, end, room, known):
    """Persistent plans, as ``segments`` describes them: keep the first step, or store the input and
    split; every way tried.
    """
    key = (begin, end, room)
    if key not in known:
        sizes, working = chain.activation_bytes, chain.working_bytes
        best = float("inf")
        if sizes[begin] + working[begin] <= room:
            after = (
                least_replay_seconds(chain, begin + 1, end, room - sizes[begin], known)
                if begin + 1 < end
                else 0
            )
            best = after
        left = room - chain.state_bytes[begin]
        for middle in range(begin + 1, end):
            if max(working[begin:middle]) <= left:
                before = least_replay_seconds(chain, begin, middle, room, known)
                after = least_replay_seconds(chain, middle, end, left, known)
                best = min(best, sum(chain.forward_seconds[begin:middle]) + before + after)
        known[key] = best
    return known[key]


@pytest.mark.parametrize("steps", [2, 5, 9, 12])
def test_a_frontier_is_the_best_of_all_persistent_plans_at_every_budget(steps):
    chain = random_chain(steps, seed=20 + steps)
    frontier = ParetoFrontier(chain)
    for index, point in enumerate(frontier.points):
        outcome = simulate(chain, frontier.actions(index))
        assert outcome.peak_bytes == point.peak_bytes + chain.fixed_bytes
        assert outcome.seconds == chain.plain_seconds + point.replay_seconds
        assert least_replay_seconds(chain, 0, steps, point.peak_bytes, {}) == point.replay_seconds
    known = {}
    for lower, upper in zip(frontier.points, frontier.points[1:]):
        assert (
            least_replay_seconds(chain, 0, steps, upper.peak_bytes - 1, known)
            == lower.replay_seconds
        )
    assert least_replay_seconds(chain, 0, steps, frontier.points[0].peak_bytes - 1, known) == float(
        "inf"
    )


def every_sections(steps):
    """Return all ways to cut a chain into sections, by their first steps."""
    return [
        (0, *(step for step in range(1, steps) if cuts >> (step - 1) & 1))
        for cuts in range(2 ** (steps - 1))
    ]


@repeatable
@given(uneven_chains(least=1, most=7), st.integers(0, 60))
def test_the_sections_run_twice_are_the_best_of_all_cuts(chain, room):
    steps, best = len(chain), None
    for sections in every_sections(steps):
        outcome = simulate(chain, section_actions(steps, sections))
        if outcome.peak_bytes <= room + chain.fixed_bytes:
            seconds = replay_seconds(chain, sections)
            best = seconds if best is None else min(best, seconds)
    found = single_replay_sections(chain, room_bytes=room)
    assert (found is None) == (best is None)
    if found is not None:
        outcome = simulate(chain, section_actions(steps, found))
        assert outcome.peak_bytes <= room + chain.fixed_bytes
        assert replay_seconds(chain, found) == best


def peak_step_by_step(chain, sections, gradients):
    """Return the peak of a compiled step: the input of a section stays, and so do gradients."""
    peak, stored, ends = 0, 0, [*sections[1:], len(chain)]
    for begin, end in zip(sections, ends):
        stored += chain.state_bytes[begin]
        for step in range(begin, end):
            peak = max(peak, stored + chain.working_bytes[step])
        for running in range(begin, end):  # backward: earlier steps are kept, later ones have run
            kept = sum(chain.activation_bytes[begin : running + 1])
            made = sum(gradients[running:end])
            peak = max(peak, stored + kept + chain.working_bytes[running] + made)
    return peak + chain.fixed_bytes


@repeatable
@given(uneven_chains(least=1, most=6), st.data())
def test_compiled_sections_are_the_best_of_all_cuts(chain, data):
    """With the gradients of weights, which stay until their section has run backward."""
    steps = len(chain)
    sizes = st.lists(st.integers(0, 9), min_size=steps, max_size=steps)
    gradients, room = data.draw(sizes), data.draw(st.integers(0, 60))
    fitting = []
    for sections in every_sections(steps):
        peak = peak_step_by_step(chain, sections, gradients)
        assert sections_peak_bytes(chain, sections, gradients) == peak
        if peak <= room + chain.fixed_bytes:
            fitting.append(replay_seconds(chain, sections))
    found = single_replay_sections(chain, room_bytes=room, weight_gradient_bytes=gradients)
    assert (found is None) == (not fitting)
    if found is not None:
        assert peak_step_by_step(chain, found, gradients) <= room + chain.fixed_bytes
        assert replay_seconds(chain, found) == min(fitting)


def test_a_state_must_fit_beside_what_works_while_the_chain_advances():
    # Beside state 0 (15 bytes) step 0 works on 10: 25. All else needs less: 1 + 20 to keep steps 0
    # and 1, 15 + 5 for step 2.
    chain = Chain([15, 1, 1], [1, 20, 5], [1, 1, 1], [1, 1, 1], working_bytes=[10, 0, 0])
    assert single_replay_sections(chain, room_bytes=24) is None
    assert single_replay_sections(chain, room_bytes=25) == (0, 2)


def test_a_cut_is_reached_with_as_few_stored_bytes_as_can_be():
    # 22 bytes. Steps 0 to 3 do not fit (27), nor do 3 and 4 (25). Step 4 (20) has room beside state
    # 2 (1), not state 1 (9).
    chain = Chain([0, 9, 1, 9, 9], [20, 1, 1, 5, 20], [1] * 5, [1] * 5)
    assert single_replay_sections(chain, room_bytes=22) == (0, 2, 4)


def test_a_thinned_frontier_keeps_its_ends():
    chain = random_chain(60, seed=60)
    thinned = ParetoFrontier(chain, most_points=8).points
    full = ParetoFrontier(chain, most_points=10**6).points
    assert len(thinned) <= 10 < len(full)
    assert thinned[-1].replay_seconds == full[-1].replay_seconds == 0
    assert thinned[0].peak_bytes == full[0].peak_bytes


def test_equal_steps_are_left_to_mixed():
    # 200 steps in 20 bytes: too long for a frontier with every position, and each step must run
    # several times.
    chain = Chain.homogeneous(200, state_bytes=1, activation_bytes=5)
    assert optimal_plan(chain, budget_bytes=20) == mixed_plan(chain, budget_bytes=20)


@pytest.mark.parametrize("checkpoints", [1, 3, 7, 19])
def test_it_is_never_slower_than_equal_sections_in_the_same_memory(checkpoints):
    chain = random_chain(120, seed=4)
    uniform = simulate(chain, uniform_plan(120, checkpoints=checkpoints))
    best = simulate(chain, optimal_plan(chain, budget_bytes=uniform.peak_bytes))
    assert best.seconds <= uniform.seconds


@pytest.mark.long
def test_a_long_chain_takes_the_better_of_its_two_planners():
    chain = random_chain(120, seed=4)
    points = ParetoFrontier(chain).points
    won_by = set()
    for point in points:
        outcome = simulate(
            chain, optimal_plan(chain, budget_bytes=point.peak_bytes + chain.fixed_bytes)
        )
        seconds = chain.plain_seconds + point.replay_seconds
        assert outcome.seconds <= seconds
        sections = single_replay_sections(chain, room_bytes=point.peak_bytes)
        if sections is not None and replay_seconds(chain, sections) < point.replay_seconds:
            assert outcome.seconds == chain.plain_seconds + replay_seconds(chain, sections)
            won_by.add("sections")
        elif sections is None or replay_seconds(chain, sections) > point.replay_seconds:
            assert outcome.seconds == seconds
            won_by.add("points")
    assert won_by == {"sections", "points"}


def test_a_budget_too_small_says_which_would_do():
    chain = Chain([0, 5], [10, 20], [1, 1], [1, 1], fixed_bytes=100)
    # Step 1 needs 20 bytes at some time; state 0 is free to store and step 0 to replay from it.
    with pytest.raises(
        BudgetTooSmallError, match=r"budget_bytes is 119, too small for any plan: .* is 120 bytes"
    ) as caught:
        optimal_plan(chain, budget_bytes=119)
    assert caught.value.smallest_budget_bytes == 120
    assert simulate(chain, optimal_plan(chain, budget_bytes=120)).peak_bytes == 120


@pytest.mark.parametrize("budget_bytes", [-1, 1.0, "1", True])
def test_a_budget_is_a_whole_number_of_bytes(budget_bytes):
    with pytest.raises(InvalidArgumentError, match="budget_bytes is "):
        optimal_plan(random_chain(3, seed=0), budget_bytes=budget_bytes)


def test_seconds_may_be_fractions():
    # Sums of these in different orders differ in the last digit.
    chain = Chain([4, 4, 1, 3], [11, 10, 9, 7], [0.8, 0.6, 0.4, 0.9], [0.7, 0.11, 0.13, 0.1])
    for budget_bytes in range(smallest_budget(chain), chain.plain_peak_bytes + 1):
        best = fewest_forward_seconds(chain, budget_bytes)
        outcome = simulate(chain, optimal_plan(chain, budget_bytes=budget_bytes))
        assert outcome.seconds == pytest.approx(best + 1.04)
