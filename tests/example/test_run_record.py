"""What a run records of its updates, alone and as it goes on from a save."""

import json
from pathlib import Path

import pytest

from lstm_example.arguments import parse_arguments
from lstm_example.run_record import RunRecord
from lstm_example.run_report import figures_of
from lstm_example.saves import Save
from lstm_example.worker_processes import WorkerShare

OPTIONS = parse_arguments("--gradient-accumulation 2 --steps-per-epoch 10 --epochs 2".split(), "")
SHARE = WorkerShare(OPTIONS)


def test_the_first_update_compiles_and_is_not_timed():
    record = RunRecord(SHARE)
    assert record.step_seconds is None
    record.add_update(loss=3.0, norm=1.0, elapsed_seconds=8.0)
    assert record.step_seconds == 8.0 / 2  # of two microbatches; the only one counts
    for seconds in (2.0, 6.0, 4.0):
        record.add_update(loss=2.0, norm=0.5, elapsed_seconds=seconds)
    assert record.step_seconds == 4.0 / 2
    assert (record.updates, record.trained_seconds) == (4, 20.0)
    assert record.gradient_norms == [1.0, 0.5, 0.5, 0.5]


def test_norms_that_are_unknown_once_are_unknown():
    record = RunRecord(SHARE)
    record.add_update(loss=3.0, norm=None, elapsed_seconds=1.0)
    record.add_update(loss=2.0, norm=1.0, elapsed_seconds=1.0)
    assert record.gradient_norms is None
    assert record.losses == [3.0, 2.0]


def test_a_run_that_goes_on_adds_to_the_figures_of_its_save():
    state = {
        "updates": 2,
        "losses": [4.0, 3.0],
        "gradient_norms": [1.0, 1.0],
        "validation": [{"update": 2, "loss": 3.0, "trained_seconds": 5.0}],
        "trained_seconds": 5.0,
    }
    before = json.dumps(state)
    record = RunRecord(SHARE, resumed=Save(Path("saves/update-00000002"), state))
    record.add_update(loss=2.0, norm=0.5, elapsed_seconds=1.0)
    figures = figures_of(record)
    assert figures["losses"] == [4.0, 3.0, 2.0]
    assert figures["gradient_norms"] == [1.0, 1.0, 0.5]
    assert (figures["trained_seconds"], figures["step_seconds"]) == (6.0, 0.5)
    assert (figures["resumed_after"], figures["saved"]) == (2, "saves/update-00000002")
    assert json.dumps(state) == before


@pytest.mark.parametrize(
    ("every", "due"),
    [(4, [4, 8, 10]), (5, [5, 10]), (1, list(range(1, 11))), (99, [10])],
)
def test_what_is_due_every_few_updates_is_due_after_the_last_one_too(every, due):
    record, found = RunRecord(SHARE), []
    assert OPTIONS.updates == 10
    for _ in range(10):
        record.add_update(loss=1.0, norm=1.0, elapsed_seconds=1.0)
        if record.is_due(every):
            found.append(record.updates)
    assert found == due
