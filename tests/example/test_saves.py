"""What was trained is kept whole or not at all, gone on from to the same losses, and used to
continue a text.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_saves import change, small_save, state_of

import recompute_lstm
from keras_recompute.keras_backend import TENSORFLOW, current_backend
from lstm_example import saves
from lstm_example.arguments import parse_arguments
from lstm_example.data import find_text, validation_batches
from lstm_example.saves import MODEL, OPTIMIZER, STATE, SaveError, last_save

SMALL = (
    "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    "--steps-per-epoch 6 --quiet"
).split()
TWO_EPOCHS = [*SMALL, "--epochs", "2", "--checkpoints", "2", "--validation", "0.1"]  # six updates
ROOT = Path(__file__).parents[2]
on_tensorflow = pytest.mark.skipif(current_backend() != TENSORFLOW, reason="TensorFlow has it")
# Of what each backend does in the same way.
long_on_tensorflow = getattr(
    pytest.mark, "long" if current_backend() == TENSORFLOW else "exhaustive"
)


def run(*arguments) -> dict:
    """Run the script, which must succeed, and return its figures."""
    figures = Path(arguments[arguments.index("--save") + 1]).with_suffix(".json")
    figures.unlink(missing_ok=True)
    assert recompute_lstm.main([*map(str, arguments), "--json", str(figures)]) == 0
    return json.loads(figures.read_text())


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def weights(save: Path) -> list[np.ndarray]:
    keras = pytest.importorskip("keras")
    return keras.models.load_model(save / MODEL).get_weights()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Six updates without a break, each saved: the folder, and the figures."""
    folder = tmp_path_factory.mktemp("saves") / "undisturbed"
    return folder, run(*TWO_EPOCHS, "--save", folder, "--save-every", "1", "--keep", "4")


def broken_off(undisturbed, tmp_path, after: int) -> Path:
    """Return a copy of the folder as it was after some updates."""
    folder = tmp_path / "broken_off"
    tmp_path.mkdir(exist_ok=True)
    shutil.copytree(undisturbed[0], folder)
    for name in kept(folder):
        if int(name.split("-")[1]) > after:
            shutil.rmtree(folder / name)
    return folder


@pytest.mark.long
def test_the_last_saves_stay(undisturbed):
    folder, figures = undisturbed
    assert kept(folder) == [f"update-{number:08d}" for number in (3, 4, 5, 6)]
    assert figures["saved"] == str(folder / "update-00000006")
    assert (
        json.loads((folder / "update-00000004" / STATE).read_text())["losses"]
        == figures["losses"][:4]
    )


@pytest.mark.long
@pytest.mark.parametrize("after", [3, 4])  # at the end of an epoch, and within one
def test_a_run_goes_on_to_the_same_losses_to_the_bit(undisturbed, tmp_path, after):
    folder = broken_off(undisturbed, tmp_path, after)
    figures = run(*TWO_EPOCHS, "--save", folder, "--resume")
    for name in ("losses", "gradient_norms"):
        assert figures[name] == undisturbed[1][name]
    for ours, theirs in zip(figures["validation"], undisturbed[1]["validation"], strict=True):
        assert (ours["update"], ours["loss"]) == (theirs["update"], theirs["loss"])
    assert figures["trained_seconds"] > figures["validation"][0]["trained_seconds"] > 0
    assert figures["resumed_after"] == after
    for ours, theirs in zip(
        weights(folder / "update-00000006"),
        weights(undisturbed[0] / "update-00000006"),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    [
        "--checkpoints 5",
        pytest.param("--checkpoints 7 --levels 2", marks=on_tensorflow),
        "--checkpoints auto --memory-budget 1GiB",
    ],
)
def test_the_plan_is_no_part_of_what_is_learnt(undisturbed, tmp_path, plan):
    folder = broken_off(undisturbed, tmp_path, 4)
    figures = run(*TWO_EPOCHS, *plan.split(), "--save", folder, "--resume")
    np.testing.assert_allclose(figures["losses"], undisturbed[1]["losses"], rtol=1e-5)


@on_tensorflow
@pytest.mark.long
def test_two_workers_go_on_too_and_so_does_one_in_their_place(undisturbed, tmp_path):
    """What each update learns is the same, however many share its microbatches."""
    losses = []
    for number, workers in enumerate((["--workers", "2"], [])):
        folder = broken_off(undisturbed, tmp_path / str(number), 4)
        figures = tmp_path / f"{number}.json"
        asked = [*SMALL, "--epochs", "2", "--checkpoints", "2", *workers, "--json", str(figures)]
        for save in folder.iterdir():  # as of a run that held nothing back
            if save.is_dir():
                settings = state_of(save)["settings"]
                change(settings={**settings, "validation": None})(save)
        command = [sys.executable, "recompute_lstm.py", *asked, "--save", str(folder), "--resume"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(figures.read_text())
        assert found["resumed_after"] == 4
        assert found["workers"] == (1 if number else 2)
        assert len(found["losses"]) == 6
        losses.append(found["losses"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.long
def test_more_epochs_go_on_as_one_long_run(undisturbed, tmp_path):
    folder = broken_off(undisturbed, tmp_path, 6)
    figures = run(*TWO_EPOCHS, "--epochs", "3", "--save", folder, "--resume")
    whole = run(*TWO_EPOCHS, "--epochs", "3", "--save", tmp_path / "whole")
    assert figures["losses"] == whole["losses"]


@pytest.mark.long
def test_the_network_that_is_saved_is_the_one_that_was_trained(undisturbed):
    """Its cross entropy of the text that was held back, taken by hand, is the validation loss of
    the run.
    """
    keras = pytest.importorskip("keras")
    folder, figures = undisturbed
    options = parse_arguments(TWO_EPOCHS, "")
    network = keras.models.load_model(folder / "update-00000006" / MODEL)
    assert type(network).__module__.startswith("keras.")
    x, y = validation_batches(options, find_text(options), 8)
    assert len(x) == 8 * 4
    logits = keras.ops.convert_to_numpy(network(x)).astype(np.float64)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    chances = np.take_along_axis(odds / odds.sum(-1, keepdims=True), y[..., None], -1)
    assert figures["validation"][-1]["update"] == 6
    assert figures["validation"][-1]["loss"] == pytest.approx(-np.log(chances).mean(), rel=1e-5)


@pytest.mark.long
def test_a_text_is_continued_by_what_the_network_makes_of_all_before(undisturbed, capsys):
    """At temperature 0, against the network on the whole text so far, byte after byte."""
    keras = pytest.importorskip("keras")
    folder, _ = undisturbed
    asked = ["--load", str(folder), "--generate", "An import"]
    assert recompute_lstm.main([*asked, "--length", "6", "--temperature", "0"]) == 0
    network, text = keras.models.load_model(folder / "update-00000006" / MODEL), list(b"An import")
    for _ in range(6):
        following = keras.ops.convert_to_numpy(network(np.array([text])))[0, -1]
        text.append(int(np.argmax(following)))
    assert capsys.readouterr().out == bytes(text).decode(errors="replace") + "\n"
    drawn = []
    for seed in ("1", "1", "2"):
        assert recompute_lstm.main([*asked, "--length", "30", "--seed", seed]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_full_disk_leaves_the_last_save_whole(tmp_path):
    def full(path: Path) -> None:
        (path / MODEL).write_bytes(b"mod")
        raise OSError(errno.ENOSPC, "No space left on device")

    small_save(tmp_path, 1)
    with pytest.raises(
        SaveError, match=r"No space left on device.*update-00000001, and --resume continues from it"
    ):
        small_save(tmp_path, 2, write=full)
    assert os.listdir(tmp_path) == ["update-00000001"]
    assert last_save(tmp_path, "--resume").updates == 1
    with pytest.raises(SaveError, match="there is no save yet"):
        small_save(tmp_path / "other", 1, write=full)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--save DIR", "it has saves of an earlier run; continue it with --resume"),
        ("--save DIR --resume --units 9", "is of a run with units 8, not 9; give the same"),
        ("--save DIR --resume --seed 1", "is of a run with seed 0, not 1"),
        ("--save DIR --resume --text README.md", "is of a run with text 4"),
        ("--save DIR --resume --epochs 1", "all 3 updates were done by"),
        ("--save missing --resume", "there is no save in missing"),
        ("--save README.md", "--save README.md: it is a file, not a folder"),
        ("--resume", "--resume: it needs --save"),
        ("--keep 2", "--keep: it needs --save"),
        ("--save DIR --resume --sweep", "--sweep: it cannot be combined with --save"),
        ("--save DIR --resume --device h100", "--device: it cannot be combined with --save"),
        ("--save DIR --keep 0", "0 is too small"),
        ("--save=", "argument --save: the name of the folder is empty"),
        ("--save new --json new", "--json new: it is in the way of the folder of --save new"),
        ("--data constant", "--validation: --data constant has nothing to hold back"),
        ("--validation 1", "1 is not between 0 and 1"),
        ("--validation 0.0001", "46 held back by --validation 0.0001"),
    ],
)
def test_what_cannot_be_kept_or_gone_on_from_is_one_line(undisturbed, arguments, says, capsys):
    folder, _ = undisturbed
    before = kept(folder)
    asked = [*TWO_EPOCHS, *arguments.replace("DIR", str(folder)).split()]
    assert recompute_lstm.main(asked) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert says in err
    assert kept(folder) == before
    assert not Path("missing").exists()
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--generate", "a"], "--generate needs a network: give --load"),
        (["--load", "DIR"], "--load: it needs --generate"),
        (["--length", "3"], "--length: it needs --generate"),
        (["--load", "DIR", "--generate", ""], "there is no text to continue"),
        (["--load", "DIR", "--generate", "\udcff"], "the text is not valid UTF-8"),
        (
            ["--load", "tests", "--generate", "a"],
            "--load tests: there is no save in it; give the folder of --save",
        ),
        (
            ["--load", "README.md", "--generate", "a"],
            "--load README.md: it cannot be read (Not a directory)",
        ),
        (
            ["--load", "DIR", "--generate", "a", "--temperature", "-1"],
            "-1 is not a finite number from 0 on",
        ),
        (
            ["--load", "DIR", "--generate", "a", "--save", "DIR"],
            "--save: it cannot be combined with --generate",
        ),
    ],
)
def test_what_cannot_be_continued_is_one_line(undisturbed, arguments, says, capsys):
    folder, _ = undisturbed
    assert (
        recompute_lstm.main([argument.replace("DIR", str(folder)) for argument in arguments]) == 2
    )
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert says in err


def test_other_versions_are_refused(undisturbed, tmp_path, capsys):
    folder = broken_off(undisturbed, tmp_path, 4)
    backend = current_backend()
    change(versions={backend: "2.99.0", "keras": "3.99.0"})(folder / "update-00000004")
    assert recompute_lstm.main([*TWO_EPOCHS, "--save", str(folder), "--resume"]) == 2
    assert f"was written with {backend} 2.99.0, and this is" in capsys.readouterr().err
    assert kept(folder)[-1] == "update-00000004"


@pytest.mark.long
def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    folder = tmp_path / "saves"
    command = [
        sys.executable,
        "recompute_lstm.py",
        *SMALL,
        "--epochs",
        "100000",
        "--save",
        str(folder),
        "--save-every",
        "1",
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while process.poll() is None and not (folder.exists() and kept(folder)):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    line = err.strip().splitlines()[-1]
    assert f"; --resume goes on from {folder}{os.sep}update-" in line
    assert last_save(folder, "--resume") is not None


def has_saved(folder, updates):
    """Whether there is a save of more than ``updates``."""
    try:
        return any(int(name.removeprefix("update-")) > updates for name in kept(folder))
    except FileNotFoundError:  # it is made and removed at the start, to see whether it can be
        return False


@long_on_tensorflow
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_is_not(tmp_path):
    """KILLS=20 for more. Whatever there is when it is killed loads, and the end is the same to the
    bit.
    """
    asked, folder = [*SMALL, "--epochs", "20", "--save-every", "1"], tmp_path / "killed"
    command = [sys.executable, "recompute_lstm.py", *asked, "--save", str(folder)]
    kills, chance = int(os.environ.get("KILLS", "2")), random.Random(0)
    for _ in range(kills):
        begun = last_save(folder, "--resume") if folder.exists() else None
        if begun is not None and begun.updates >= 60:
            break
        resume = ["--resume"] if begun is not None else []
        process = subprocess.Popen(
            [*command, *resume], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        more = begun.updates if begun else 0
        while process.poll() is None and not has_saved(folder, more):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.wait()
        assert last_save(folder, "--resume") is not None
    if last_save(folder, "--resume").updates < 60:
        run(*asked, "--save", folder, "--resume")
    whole = run(*asked, "--save", tmp_path / "whole")
    state = last_save(folder, "--resume").state
    assert state["losses"] == whole["losses"]
    for ours, theirs in zip(
        weights(folder / "update-00000060"),
        weights(tmp_path / "whole" / "update-00000060"),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_text_that_cannot_be_printed_ends_at_once(undisturbed):
    command = [
        sys.executable,
        "recompute_lstm.py",
        "--load",
        str(undisturbed[0]),
        "--generate",
        "a",
        "--length",
        "100000000",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 1
    assert (
        "standard output cannot be written: No space left on device" in done.stderr.splitlines()[-1]
    )


def test_the_disk_is_waited_for(tmp_path, monkeypatch):
    reached = []
    monkeypatch.setattr(
        saves.os, "fsync", lambda handle: reached.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    small_save(tmp_path, 1)
    assert {Path(path).name for path in reached} >= {MODEL, OPTIMIZER, STATE, tmp_path.name}
