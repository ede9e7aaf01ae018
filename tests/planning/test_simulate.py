"""The pretend machine: what it counts, and that every rule it knows is enforced, naming the action
and the step.
"""

import pytest

from keras_recompute.errors import InvalidPlanError
from keras_recompute.planning import Chain, Outcome, Plan, simulate
from keras_recompute.planning.actions import Advance, Backward, Free, Keep, Restore, Store

# Every size and cost has its own power of two or ten, so that each sum below has one reading.
CHAIN = Chain(
    state_bytes=[1, 2, 4],
    activation_bytes=[10, 20, 40],
    forward_seconds=[1, 10, 100],
    backward_seconds=[1000, 10000, 100000],
    working_bytes=[100, 200, 400],
    fixed_bytes=5000,
)
# Store state 0, run ahead, keep the last step; then replay the first two one by one.
SOUND = [
    Store(0),
    Advance(0, 2),
    Keep(2, 3),
    Backward(2, 3),
    Restore(0),
    Advance(0, 1),
    Keep(1, 2),
    Backward(1, 2),
    Restore(0),
    Free(0),
    Keep(0, 1),
    Backward(0, 1),
]


def test_keeping_everything_costs_what_the_chain_says():
    assert simulate(CHAIN, [Keep(0, 3), Backward(0, 3)]) == Outcome(
        peak_bytes=5000 + 10 + 20 + 40 + 400, forward_steps=3, replayed_steps=0, seconds=111111
    )


def test_what_is_stored_kept_and_at_work_adds_up_and_replays_are_counted():
    # Forward runs: steps 0, 1; 2; 0; 1; 0. The peak is while step 2 runs, with state 0 stored and
    # its activations kept.
    assert simulate(CHAIN, SOUND) == Outcome(
        peak_bytes=5000 + 1 + 40 + 400,
        forward_steps=6,
        replayed_steps=3,
        seconds=111111 + 1 + 10 + 1,
    )


def test_the_state_freed_before_its_step_is_kept_does_not_count():
    chain = Chain([7], [10], [1], [1])
    assert simulate(chain, [Store(0), Free(0), Keep(0, 1), Backward(0, 1)]).peak_bytes == 10
    assert simulate(chain, [Store(0), Keep(0, 1), Free(0), Backward(0, 1)]).peak_bytes == 17


def test_storing_alone_can_be_the_peak():
    assert (
        simulate(
            Chain([7], [1], [1], [1]), [Store(0), Free(0), Keep(0, 1), Backward(0, 1)]
        ).peak_bytes
        == 7
    )


def test_working_bytes_count_while_a_step_advances():
    chain = Chain([3, 3], [1, 1], [1, 1], [1, 1], working_bytes=[50, 0])
    plan = [
        Store(0),
        Advance(0, 1),
        Keep(1, 2),
        Backward(1, 2),
        Restore(0),
        Free(0),
        Keep(0, 1),
        Backward(0, 1),
    ]
    assert simulate(chain, plan).peak_bytes == 3 + 50


def test_a_backward_range_runs_last_step_first_and_drops_as_it_goes():
    chain = Chain([0, 0], [10, 20], [1, 1], [1, 1], working_bytes=[100, 0])
    # Forward: 10 + 100, then 30. Backward: 30, then 10 + 100: the 20 bytes of step 1 are gone by
    # then.
    assert simulate(chain, [Keep(0, 2), Backward(0, 2)]).peak_bytes == 110


def test_a_plan_is_read_once_and_may_be_lazy():
    assert simulate(CHAIN, iter(SOUND)) == simulate(CHAIN, Plan(3, tuple(SOUND)))


def test_plans_compare_by_their_actions():
    assert Plan(3, tuple(SOUND), planner="one") == Plan(3, tuple(SOUND), planner="other")
    assert Plan(3, tuple(SOUND)) != Plan(3, tuple(SOUND[:-1]))
    assert Store(1) != Free(1)
    assert Advance(0, 1) != Keep(0, 1)
    assert len({Plan(3, tuple(SOUND)), Plan(3, tuple(SOUND))}) == 1
    assert (len(Plan(3, tuple(SOUND))), list(Plan(3, tuple(SOUND)))) == (12, SOUND)


def without(position):
    return SOUND[:position] + SOUND[position + 1 :]


def with_extra(position, action):
    return [*SOUND[:position], action, *SOUND[position:]]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            without(0),
            r"action 3, Restore\(step=0\): the input of step 0 is not stored: store it before",
        ),
        (
            without(1),
            (
                r"action 1, Keep\(begin=2, end=3\): the input of step 2 is not in hand "
                r"\(input is\): restore it or"
            ),
        ),
        (
            without(2),
            (
                r"action 2, Backward\(begin=2, end=3\): the activations of step 2 are not kept: "
                r"run it forward with Keep"
            ),
        ),
        (
            without(3),
            (
                r"action 6, Backward\(begin=1, end=2\): step 1 cannot run backward now: "
                r"the next one is step 2"
            ),
        ),
        (
            without(4),
            (
                r"action 4, Advance\(begin=0, end=1\): the input of step 0 is not in hand "
                r"\(nothing is\)"
            ),
        ),
        (
            without(5),
            r"action 5, Keep\(begin=1, end=2\): the input of step 1 is not in hand \(input is\)",
        ),
        (without(9), r"the end of the plan: the input of step 0 is still stored: free it"),
        (without(11), r"the end of the plan: step 0 has not run backward: add the missing actions"),
        ([], r"the end of the plan: step 2 has not run backward"),
        (
            with_extra(1, Store(0)),
            r"action 1, Store\(step=0\): the input of step 0 is already stored: store it once",
        ),
        (
            with_extra(2, Store(1)),
            (
                r"action 2, Store\(step=1\): the input of step 1 is not in hand "
                r"\(the output of step 1 is\)"
            ),
        ),
        (with_extra(3, Store(3)), r"action 3, Store\(step=3\): the input of step 3 is not in hand"),
        (
            with_extra(10, Free(0)),
            r"action 10, Free\(step=0\): the input of step 0 is not stored, so it cannot be freed",
        ),
        (
            with_extra(9, Restore(1)),
            r"action 9, Restore\(step=1\): the input of step 1 is not stored",
        ),
        (
            with_extra(6, Advance(1, 3)),
            r"action 6, Advance\(begin=1, end=3\): step 2 has run backward already",
        ),
        (
            [Store(0), Keep(0, 1), Restore(0), Keep(0, 1)],
            r"action 3, .*: the activations of step 0 are already kept: keep them",
        ),
        (
            [Keep(0, 3), Backward(0, 2)],
            r"action 1, .*: step 1 cannot run backward now: the next one is step 2",
        ),
        (
            [Keep(0, 3), Backward(0, 3), Backward(0, 1)],
            r"action 2, .*: step 0 cannot run backward now",
        ),
        (
            [Keep(0, 4)],
            r"action 0, Keep\(begin=0, end=4\): steps 0 to 3 are not within the 3 steps",
        ),
        (
            [Advance(0, 0)],
            r"action 0, Advance\(begin=0, end=0\): steps 0 to -1 are not within the 3 steps",
        ),
        ([Keep(-1, 1)], r"action 0, Keep\(begin=-1, end=1\): steps -1 to 0 are not within"),
        (["Keep"], r"action 0, 'Keep': this is not an action of a plan"),
    ],
)
def test_a_broken_plan_is_rejected(plan, message):
    with pytest.raises(InvalidPlanError, match=message):
        simulate(CHAIN, plan)
