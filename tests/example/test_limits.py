"""Numbers and names at the limits of what there is: right, or one line and exit code 2 before
anything is trained.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

import recompute_lstm
from keras_recompute.errors import InvalidArgumentError
from lstm_example.arguments import parse_arguments
from lstm_example.data import find_text, microbatches, validation_batches
from lstm_example.network import _draw_byte
from lstm_example.options import LARGEST_SEED
from lstm_example.sequence_plans import named_plans

LONG = "x" * 300


@pytest.mark.parametrize("seed", [0, 1, LARGEST_SEED - 1, LARGEST_SEED])
def test_every_seed_holds_other_text_back_than_the_next(seed):
    options = parse_arguments(
        ["--seed", str(seed), "--validation", "0.1", "--seq-len", "8", "--batch-size", "2"], ""
    )
    text = find_text(options)
    for inputs, _ in (validation_batches(options, text, 1), next(microbatches(options, text))):
        assert inputs.shape == (2, 8)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--temperature 1e-320", "1e-320 is too small: the least is 1.18e-38"),
        ("--temperature 1e300", "1e300 is too large: the most is 3.4e+38"),
        ("--temperature nan", "nan is not a finite number from 0 on"),
        ("--learning-rate 1e-320", "1e-320 is too small: the least is 1.18e-38"),
        ("--learning-rate 1e39", "1e39 is too large: the most is 3.4e+38"),
        ("--learning-rate 1e999", "1e999 is not a finite number above zero"),
        ("--validation 1e-320", "1e-320 is too small"),
        (f"--seed {LARGEST_SEED + 1}", f"the most is {LARGEST_SEED}"),
        (f"--epochs {10**13}", "the most is 1000000000000"),
        (f"--epochs {'9' * 5000}", "is not a whole number from 1 on"),
        (f"--checkpoints auto --memory-budget {'9' * 400}.5GiB", "is more than any memory"),
        (f"--checkpoints auto --memory-budget {'9' * 5000}", "is more than any memory"),
        ("--levels 99", "--levels 99: 2048 steps can be nested in at most 11 levels"),
        ("--levels 99 --sweep", "--levels 99: 2048 steps can be nested in at most 11"),
        (
            "--levels 99 --checkpoints auto --memory-budget 1GiB",
            "--levels 99: 2048 steps can be nested in at most 11",
        ),
        (
            "--levels 2 --seq-len 2 --checkpoints 1",
            "--levels 2: 2 steps can be nested in at most 1",
        ),
        ("--report=", "--report: the name of the folder is empty"),
        ("--json=", "--json: the name of the file is empty"),
        ("--log=", "--log: the name of the folder is empty"),
        ("--text=", "--text: the name of the file is empty"),
        ("--load= --generate a", "--load: the name of the folder is empty"),
        ("--json a\0b", "has a character that no file name can have"),
        (f"--save {LONG}", "too long"),
        (f"--save new/{LONG}", "too long"),
        (f"--log {LONG}", "too long"),
        (f"--load {LONG} --generate a", "too long"),
        (
            "--save gs://bucket/run",
            "'gs://bucket/run' is an address, and only files of this machine",
        ),
        (
            f"--device h100 --units {10**12}",
            "TiB for a training step and 1.00 MiB for its data",
        ),
        (f"--cell {'x' * 5000}", "argument --cell: invalid choice: 'xxx"),
        ("--json same --log same", "--json same: it is in the way of the folder of --log same"),
        (
            "--json same --log same/inside",
            "--json same: it is in the way of the folder of --log same/inside",
        ),
        (
            "--json saves/.lock --save saves --force",
            "--json saves/.lock: it is the name of a file of --save saves",
        ),
        ("--json saves/update-00000010 --save saves", "it is the name of a file of --save saves"),
        (
            "--text saves/.lock --seq-len 9 --save saves",
            "--save saves: it would overwrite saves/.lock",
        ),
        ("--save pipe", "--save pipe: it is a pipe"),
        ("--save dangling", "--save dangling: it cannot be written"),
        ("--save circle", "--save circle: it cannot be"),
    ],
    ids=lambda value: value[:50],
)
def test_what_cannot_be_is_one_line_and_touches_nothing(
    tmp_path, monkeypatch, capsys, arguments, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saves").mkdir()
    (tmp_path / "saves" / ".lock").write_text("text to learn, and more of it")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    asked = arguments.split(" ")
    if "--temperature" in asked:
        asked += ["--load", "saves", "--generate", "a"]
    assert recompute_lstm.main(asked) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert says in err
    assert len(err) < 500
    assert sorted(tmp_path.rglob("*")) == before


def test_the_coldest_and_the_hottest_temperature_draw_without_a_warning():
    logits = np.array([0.0, -1.0, 80.0, -80.0])
    random = np.random.RandomState(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {_draw_byte(logits, 2.0**-126, random) for _ in range(20)} == {2}
        assert {_draw_byte(logits, 3.4e38, random) for _ in range(100)} == {0, 1, 2, 3}


def test_numbers_of_checkpoints_that_are_proposed_are_possible():
    (plan,) = named_plans(parse_arguments(["--levels", "11", "--checkpoints", "6"], ""))
    (said,) = [
        warning
        for warning in plan.warnings(2048)
        if "grouped" in warning and "in 11 levels" in warning
    ][:1]
    assert "or 2047 with this one" in said
    parse_arguments(["--levels", "11", "--checkpoints", "2047"], "")


def test_an_open_place_is_no_trouble(tmp_path, monkeypatch):
    """A folder that is not there yet, and one in it, for each; nothing of the trial stays."""
    monkeypatch.chdir(tmp_path)
    from lstm_example.output_checks import check_outputs

    check_outputs(
        parse_arguments(
            "--json out.json --report new/report --save new/saves --log new/saves".split(), ""
        )
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidArgumentError, match="the folder new does not exist"):
        check_outputs(parse_arguments("--json new/out.json".split(), ""))
