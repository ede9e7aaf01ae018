"""The oracle for equal steps is what another implementation, checkpoint-schedules, computes."""

import pytest

from tests.oracles.equal_steps import fewest_replayed_steps

mixed = pytest.importorskip("checkpoint_schedules.mixed", reason="needs checkpoint-schedules")
multistage = pytest.importorskip("checkpoint_schedules.multistage")
STEPS = 120


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 20])
def test_one_step_of_activations_leaves_the_binomial_schedule(slots):
    """Griewank & Walther 2000: ``slots`` states, and one step of activations that is larger."""
    replayed = fewest_replayed_steps(
        STEPS, room_bytes=slots + 100, state_bytes=1, activation_bytes=100
    )
    for steps in range(2, STEPS + 1):
        # The package refuses more slots than it can use: steps - 1.
        run = multistage.optimal_steps_binomial(steps, min(slots, steps - 1))
        assert steps + replayed[-1, steps] == run, steps


@pytest.mark.parametrize("units", [1, 2, 3, 7, 20])
def test_states_as_large_as_activations_leave_the_mixed_schedule(units):
    """Maddison 2024: units hold a state or activations; the step in work is not one of them."""
    replayed = fewest_replayed_steps(STEPS, room_bytes=units + 1, state_bytes=1, activation_bytes=1)
    for steps in range(2, STEPS + 1):
        run = mixed.optimal_steps_mixed(steps, min(units, steps - 1))
        assert steps + replayed[-1, steps] == run, steps


def test_nothing_fits_below_one_step_and_one_state():
    replayed = fewest_replayed_steps(3, room_bytes=6, state_bytes=1, activation_bytes=5)
    assert replayed[4, 1] == float("inf")
    assert replayed[5, 1] == 0
    assert replayed[5, 2] == float("inf")
    assert replayed[6].tolist() == [0, 0, 1, 3]
