"""Numbers of IPUs, microbatches and steps that the replicas cannot share."""

from __future__ import annotations

import pytest

from .replica_models import BATCH, configure, data, replicated

pytestmark = pytest.mark.usefixtures("graphcore_names")


def test_ipus_that_do_not_hold_whole_copies():
    model = replicated(1, "Sequential", steps=2, accumulation=2)
    configure(3)
    with pytest.raises(
        ValueError,
        match=r"3 IPUs do not hold whole copies of a model that uses 2: .* a multiple of 2",
    ):
        model.fit(*data(2), batch_size=BATCH, verbose=0)


def test_a_copy_takes_a_power_of_two_where_its_own_number_does_not_divide():
    from keras_recompute.ipu.configuration.device import replicas_on

    assert replicas_on(4, 3) == 1
    assert replicas_on(8, 3) == 2
    assert replicas_on(6, 3) == 2
    assert replicas_on(1, 2) == 1
    assert replicas_on(16, 1) == 16


def test_data_that_does_not_feed_all_replicas_once():
    model = replicated(4, None, steps=1, accumulation=1)
    with pytest.raises(ValueError, match="3 microbatches for 4 replicas, and each needs one"):
        model.fit(*data(3), batch_size=BATCH, verbose=0)


@pytest.mark.long
def test_what_is_left_over_is_dropped_with_a_warning():
    model = replicated(2, None, steps=1, accumulation=1)
    with pytest.warns(
        UserWarning, match="5 microbatches do not divide among 2 replicas: the last 1 are dropped"
    ):
        model.fit(*data(5), batch_size=BATCH, verbose=0)
    assert len(model.training_record.losses) == 2


def test_accumulation_is_per_replica():
    """Three steps of each replica, in accumulations of two."""
    model = replicated(2, None, steps=3, accumulation=2)
    with pytest.raises(RuntimeError, match="steps_per_execution=3 must be a multiple of"):
        model.fit(*data(6), batch_size=BATCH, verbose=0)


def test_steps_that_do_not_divide_are_counted_per_replica():
    model = replicated(2, None, steps=2, accumulation=2)
    with pytest.raises(
        ValueError,
        match="3 steps per epoch do not divide into executions of steps_per_execution=2",
    ):
        model.fit(*data(6), batch_size=BATCH, verbose=0)
