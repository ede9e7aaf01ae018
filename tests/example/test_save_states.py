"""Every byte of a save is covered; loading refuses in one line what no run writes."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest
from small_saves import VERSIONS, as_0_2_0_wrote, change, small_save, state_of

import recompute_lstm
from keras_recompute.errors import InvalidArgumentError
from lstm_example.saves import MODEL, OPTIMIZER, STATE, last_save

NAN, INFINITY = float("nan"), float("inf")
ROW = {"update": 1, "loss": 5.5, "trained_seconds": 1.0}


def refusal(folder) -> str:
    """Return what is said of the last save, which must be one line."""
    with pytest.raises(InvalidArgumentError) as raised:
        last_save(folder, "--resume")
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda save: (save / MODEL).write_bytes(b"modem"),
            f"{MODEL} has changed since it was written; remove this save",
        ),
        (lambda save: (save / OPTIMIZER).unlink(), "it cannot be read (No such file or directory)"),
        (lambda save: (save / STATE).write_bytes(b'{"format'), f"{STATE} is damaged"),
        (lambda save: (save / STATE).write_bytes(b"\xff"), f"{STATE} is damaged"),
        (lambda save: (save / STATE).write_bytes(b"[" * 100_000), f"{STATE} is damaged"),
        (change(format="another"), "it is not a save of recompute_lstm.py"),
        (change(schema_version=3), "a newer keras-recompute wrote it; upgrade"),
        (change(updates=3), "its 'losses' are impossible"),
        (
            change(updates=1, losses=[5.5], gradient_norms=[1.0]),
            f"it has changed since it was written: {STATE} is of update 1",
        ),
        (change(sha256={}), f"{MODEL} has changed since it was written"),
        (change(sha256={"../../secret": "0"}), "../../secret has changed since it was written"),
        (change(sha256=None), f"{STATE} is damaged"),
        (change(settings=None), f"{STATE} is damaged"),
        (change(another=1), "'another' is missing or unknown"),
    ],
)
def test_a_damaged_save_is_told_and_stays(tmp_path, wrong, says):
    save = small_save(tmp_path, 2)
    wrong(save)
    assert says in refusal(tmp_path)
    assert save.exists()


@pytest.mark.parametrize("written", [change, as_0_2_0_wrote], ids=["now", "0.2.0"])
@pytest.mark.parametrize(
    "values",
    [
        *({"schema_version": version} for version in (-1, 0, True, 1.0, "1", None, NAN, {})),
        *({"updates": count} for count in (NAN, True, 2.0, "2", -2, 0, {})),
        *(
            {"losses": losses}
            for losses in (
                ["a", 5.5],
                [5.5],
                [5.5, NAN],
                [5.5, INFINITY],
                [5.5, True],
                [5.5, 10**400],
                {},
            )
        ),
        *({"gradient_norms": norms} for norms in (None, [], [1.0, None], [1.0, NAN])),
        *(
            {"validation": rows}
            for rows in (None, {}, [1], [{}], [{**ROW, "update": 3}], [{**ROW, "loss": NAN}])
        ),
        *({"trained_seconds": seconds} for seconds in (NAN, INFINITY, -1.0, None, "1", True)),
        *({"versions": versions} for versions in (None, NAN, [], 1)),
        *({"settings": settings} for settings in (None, NAN, [])),
    ],
    ids=lambda values: json.dumps(values)[:40] if isinstance(values, dict) else None,
)
def test_what_no_run_writes_is_refused(tmp_path, written, values):
    save = small_save(tmp_path, 2)
    written(**values)(save)
    said = refusal(tmp_path)
    assert f"{STATE} is damaged" in said
    assert "remove this save" in said


def test_a_save_of_0_2_0_is_read_by_its_form(tmp_path):
    save = small_save(tmp_path, 2)
    state = last_save(tmp_path, "--resume").state
    as_0_2_0_wrote(validation=[ROW])(save)
    assert last_save(tmp_path, "--resume").state == {
        **state,
        "schema_version": 1,
        "validation": [ROW],
    }
    # That version wrote both, and a run goes on by the same alone
    for versions in ({}, {"keras": "3.15.0"}):
        as_0_2_0_wrote(versions=versions)(save)
        assert "its 'versions' are impossible" in refusal(tmp_path)


def test_a_digest_cannot_be_left_out(tmp_path):
    """Neither by calling the state one of the version that has none, nor by a name that is not
    known.
    """
    save = small_save(tmp_path, 2)
    text = (save / STATE).read_text()
    (save / STATE).write_text(text.replace('"schema_version": 2', '"schema_version": 1'))
    assert "is missing or unknown" in refusal(tmp_path)
    (save / STATE).write_text(json.dumps(json.loads(text), indent=1).replace("_above", "_abovf"))
    assert f"{STATE} has changed since it was written" in refusal(tmp_path)


def test_every_byte_and_every_length_counts(tmp_path):
    save = small_save(tmp_path, 2)
    small_save(tmp_path, 1)
    for name in (STATE, MODEL, OPTIMIZER):
        data = (save / name).read_bytes()
        for number in range(len(data)):
            flipped = bytearray(data)
            flipped[number] ^= 1 << number % 8
            (save / name).write_bytes(flipped)
            refusal(tmp_path)
        for length in (0, 1, len(data) // 2, len(data) - 1):
            (save / name).write_bytes(data[:length])
            refusal(tmp_path)
        chance = random.Random(0)
        for _ in range(50):
            (save / name).write_bytes(chance.randbytes(len(data)))
            refusal(tmp_path)
        (save / name).write_bytes(data)
    assert last_save(tmp_path, "--resume").updates == 2


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices as POSIX has them")
@pytest.mark.parametrize("name", [STATE, MODEL, OPTIMIZER])
@pytest.mark.parametrize("stands", ["a pipe", "a device"])
def test_what_may_never_end_is_one_line(tmp_path, name, stands):
    save = small_save(tmp_path, 2)
    (save / name).unlink()
    if stands == "a pipe":
        os.mkfifo(save / name)
    else:
        (save / name).symlink_to("/dev/zero")
    signal.alarm(20)  # instead of hanging
    try:
        assert f"it is {stands}, not a file" in refusal(tmp_path)
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("missing", ["tensorflow", "keras"])
def test_without_a_version_nothing_is_gone_on_from(tmp_path, missing, capsys):
    folder = tmp_path / "saves"
    save = small_save(folder, 2)
    change(versions={name: version for name, version in VERSIONS.items() if name != missing})(save)
    assert state_of(save)["versions"].keys() == {"python", *VERSIONS} - {missing}
    assert recompute_lstm.main(["--seq-len", "8", "--save", str(folder), "--resume"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "lacks the versions of Keras and of the backend that wrote it" in err
