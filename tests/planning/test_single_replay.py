"""The best sections in which no step runs more than twice, against every way to cut the chain, and
against the optimum of all plans.
"""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.planning import Chain
from keras_recompute.planning.single_replay import (
    replay_seconds,
    sections_peak_bytes,
    single_replay_sections,
    smallest_room_bytes,
)
from tests.oracles.equal_steps import fewest_replayed_steps
from tests.oracles.exhaustive_search import fewest_forward_seconds

from .cases import repeatable, uneven_chains


def every_sections(steps):
    """Return all ways to cut a chain into sections, by their first steps."""
    return [
        (0, *(step for step in range(1, steps) if cuts >> (step - 1) & 1))
        for cuts in range(2 ** (steps - 1))
    ]


def peak_of_plain_plan(chain, sections):
    """Return the peak where the input of a section is freed when the section is kept."""
    peak, stored, ends = 0, 0, [*sections[1:], len(chain)]
    for begin, end in zip(sections, ends):
        for step in range(begin, end):
            kept = sum(chain.activation_bytes[begin : step + 1])
            peak = max(peak, stored + kept + chain.working_bytes[step])
        stored += chain.state_bytes[begin]
        if end < len(chain):  # the section is first run without keeping anything
            peak = max(peak, stored + max(chain.working_bytes[begin:end]))
    return peak + chain.fixed_bytes


@repeatable
@given(uneven_chains(least=1, most=7), st.integers(0, 60))
def test_the_sections_run_twice_are_the_best_of_all_cuts(chain, room):
    fitting = [
        replay_seconds(chain, sections)
        for sections in every_sections(len(chain))
        if peak_of_plain_plan(chain, sections) <= room + chain.fixed_bytes
    ]
    found = single_replay_sections(chain, room_bytes=room)
    assert (found is None) == (not fitting)
    if found is not None:
        assert peak_of_plain_plan(chain, found) <= room + chain.fixed_bytes
        assert replay_seconds(chain, found) == min(fitting)


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


@pytest.mark.parametrize(("state", "activation"), [(1, 1), (1, 5), (2, 3), (9, 2), (1, 60)])
def test_equal_steps_replay_no_more_than_in_any_plan(state, activation):
    best = fewest_replayed_steps(40, room_bytes=200, state_bytes=state, activation_bytes=activation)
    planned = 0
    for steps in (1, 2, 7, 24, 40):
        chain = Chain.homogeneous(steps, state_bytes=state, activation_bytes=activation)
        for room in range(201):
            sections = single_replay_sections(chain, room_bytes=room)
            if sections is None:  # then some step runs three times, or nothing fits
                assert best[room, steps] >= steps - 1 or best[room, steps] == np.inf, (steps, room)
            else:
                assert replay_seconds(chain, sections) == best[room, steps], (steps, room)
                planned += best[room, steps] > 0
    assert planned > 50


@repeatable
@given(uneven_chains(least=1, most=5), st.integers(0, 30))
def test_no_plan_is_faster_than_the_exhaustive_search(chain, room):
    found = single_replay_sections(chain, room_bytes=room)
    best = fewest_forward_seconds(chain, room + chain.fixed_bytes)
    if best is None:
        assert found is None
    elif found is not None:
        assert sum(chain.forward_seconds) + replay_seconds(chain, found) >= best


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


@pytest.mark.parametrize("steps", [9, 16, 60])
def test_a_larger_room_is_never_slower_and_the_smallest_for_a_time_is_found(steps):
    chain = random_chain(steps, seed=steps)
    largest = chain.plain_peak_bytes - chain.fixed_bytes
    assert single_replay_sections(chain, room_bytes=largest) == (0,)
    seconds = []
    for part in range(1, 41):
        sections = single_replay_sections(chain, room_bytes=largest * part // 40)
        seconds.append(np.inf if sections is None else replay_seconds(chain, sections))
    assert seconds == sorted(seconds, reverse=True)
    for time in set(seconds) - {np.inf}:
        least = smallest_room_bytes(chain, seconds=time, room_bytes=largest)
        assert replay_seconds(chain, single_replay_sections(chain, room_bytes=least)) <= time
        below = single_replay_sections(chain, room_bytes=least - 1)
        assert below is None or replay_seconds(chain, below) > time
