"""A chain refuses what cannot work, and says which value, why, and what to do."""

import pytest

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import Chain


def test_a_homogeneous_chain_is_its_uneven_spelling():
    assert Chain.homogeneous(
        2, state_bytes=3, activation_bytes=5, working_bytes=1, fixed_bytes=7
    ) == Chain(
        state_bytes=[3, 3],
        activation_bytes=[5, 5],
        forward_seconds=[1, 1],
        backward_seconds=[2, 2],
        working_bytes=[1, 1],
        fixed_bytes=7,
    )


def test_plain_seconds_and_bytes_are_those_of_keeping_everything():
    chain = Chain([4, 4], [10, 20], [1, 2], [3, 4], working_bytes=[15, 1], fixed_bytes=100)
    assert chain.plain_seconds == 1 + 2 + 3 + 4
    # Of 10 + 15 during step 0 and 10 + 20 + 1 during step 1
    assert chain.plain_peak_bytes == 100 + 31
    assert (
        Chain([4, 4], [10, 20], [1, 2], [3, 4], working_bytes=[25, 1]).plain_peak_bytes == 10 + 25
    )


NAMES = ["state_bytes", "activation_bytes", "forward_seconds", "backward_seconds", "working_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_homogeneous_means_equal_in_every_size_and_cost(name):
    rows = {each: [1, 1] for each in NAMES}
    assert Chain(**rows).is_homogeneous
    assert not Chain(**{**rows, name: [1, 2]}).is_homogeneous


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"state_bytes": []},
            "state_bytes is empty, and a chain needs at least one step: give one entry per step",
        ),
        (
            {"activation_bytes": [1]},
            "activation_bytes has 1 entries but state_bytes has 2: give one entry per step to both",
        ),
        (
            {"state_bytes": [1, -1]},
            r"state_bytes\[1\] is -1: give a whole number",
        ),
        (
            {"state_bytes": [1, 1.5]},
            r"state_bytes\[1\] is 1.5: give a whole number of bytes, zero or more",
        ),
        ({"working_bytes": [True, 1]}, r"working_bytes\[0\] is True: "),
        (
            {"forward_seconds": [1, float("nan")]},
            r"forward_seconds\[1\] is nan: give a finite number, zero or more",
        ),
        ({"backward_seconds": [1, float("inf")]}, r"backward_seconds\[1\] is inf: "),
        ({"backward_seconds": ["2", 1]}, r"backward_seconds\[0\] is '2': "),
        ({"fixed_bytes": -1}, "fixed_bytes is -1: "),
    ],
)
def test_a_chain_that_cannot_be_is_refused(change, message):
    sound = {
        "state_bytes": [1, 1],
        "activation_bytes": [1, 1],
        "forward_seconds": [1, 1],
        "backward_seconds": [1, 1],
    }
    with pytest.raises(InvalidArgumentError, match=message):
        Chain(**{**sound, **change})


@pytest.mark.parametrize("steps", [0, -1, 1.0, True])
def test_a_homogeneous_chain_has_a_step(steps):
    with pytest.raises(
        InvalidArgumentError, match=f"steps is {steps}: .* whole number of at least 1"
    ):
        Chain.homogeneous(steps, state_bytes=1, activation_bytes=1)
