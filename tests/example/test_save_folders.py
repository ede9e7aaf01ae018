"""In the folder that saves go to, only what runs wrote is removed, and nothing is written through a
link.
"""

from __future__ import annotations

import errno
import os
import signal

import pytest
from small_disks import fill, small_disk
from small_saves import small_save

import recompute_lstm
from keras_recompute.errors import InvalidArgumentError
from lstm_example import saves
from lstm_example.saves import MODEL, OPTIMIZER, STATE, SaveError, hold_folder, last_save

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")


@pytest.fixture(autouse=True)
def said_anew():
    saves._said_to_stay.clear()


def test_what_was_being_written_is_never_taken_and_goes_away(tmp_path):
    small_save(tmp_path, 1)
    half = tmp_path / ".partial-1"
    half.mkdir()
    (half / STATE).write_text("{")
    assert last_save(tmp_path, "--resume").updates == 1
    with hold_folder(tmp_path):
        assert not half.exists()
        with pytest.raises(InvalidArgumentError, match="another run saves there"), hold_folder(
            tmp_path
        ):
            pass
    with hold_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    "files", [[], [MODEL], [MODEL, "tmp0123abc_"], [MODEL, OPTIMIZER], [MODEL, OPTIMIZER, STATE]]
)
def test_what_a_run_left_goes_away_however_far_it_came(tmp_path, files):
    left = tmp_path / ".partial-k3_9xa0z"  # as tempfile names it
    left.mkdir()
    for name in files:
        (left / name).write_bytes(b"x")
    with hold_folder(tmp_path):
        assert not left.exists()


def of_a_user(folder):
    """Make what a user may have there, and return the paths of the files in it."""
    mine, elsewhere = folder / ".partial-mine", folder.parent / "elsewhere"
    for path in (mine / "notes.txt", folder / ".partial-k3_9xa0z" / "notes.txt", elsewhere / MODEL):
        path.parent.mkdir(parents=True)
        path.write_text("precious")
    (folder / ".partial-with_dir").mkdir()
    (folder / ".partial-with_dir" / MODEL).mkdir()
    (folder / ".partial-abcdefgh").symlink_to(elsewhere)
    (folder / ".partial-copied").mkdir()
    for name in (MODEL, OPTIMIZER, STATE):
        (folder / ".partial-copied" / name).write_text("precious")
    (folder / ".partial-a_model").mkdir()
    (folder / ".partial-a_model" / MODEL).symlink_to(elsewhere / MODEL)
    (folder / ".partial-file").write_text("precious")
    return sorted(folder.rglob("*")) + sorted(elsewhere.rglob("*"))


def test_what_a_user_has_there_stays(tmp_path):
    folder = tmp_path / "saves"
    folder.mkdir()
    before = of_a_user(folder)
    with hold_folder(folder):
        small_save(folder, 1, keep=1)
        small_save(folder, 2, keep=1)
    for path in before:
        assert path.is_symlink() or path.exists(), path
        if path.is_file():
            assert path.read_text() == "precious"


@pytest.mark.parametrize("target", ["somebody's", "/dev/zero", "nowhere"])
def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path, target):
    (tmp_path / "somebody's").write_text("precious")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(
        InvalidArgumentError, match=r"--save .*\.lock is a symbolic link.*: remove it"
    ), hold_folder(tmp_path):
        pass
    assert (tmp_path / "somebody's").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_workers_are_not_started_where_the_first_one_could_not_save(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "lstm_example.run.start_workers", lambda *_: pytest.fail("they are started")
    )
    (tmp_path / ".lock").symlink_to("somebody's")
    assert recompute_lstm.main(["--workers", "2", "--save", str(tmp_path)]) == 2
    assert ".lock is a symbolic link" in capsys.readouterr().err
    (tmp_path / ".lock").unlink()
    with hold_folder(tmp_path):
        assert recompute_lstm.main(["--workers", "2", "--save", str(tmp_path)]) == 2
    assert "another run saves there" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_a_lock_that_is_no_file_is_refused_at_once(tmp_path, make, what):
    make(tmp_path / ".lock")
    signal.alarm(20)  # instead of hanging
    try:
        with pytest.raises(
            InvalidArgumentError, match=rf"\.lock is {what} instead .* remove it"
        ), hold_folder(tmp_path):
            pass
    finally:
        signal.alarm(0)


def test_a_file_that_is_called_so_is_held_and_keeps_what_is_in_it(tmp_path):
    (tmp_path / ".lock").write_text("precious")
    with hold_folder(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "precious"


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(
        InvalidArgumentError, match=r"locked for this run \(No locks available\)"
    ), hold_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("stands", "why"),
    [
        (lambda path, other: path.symlink_to(other), "it is a symbolic link"),
        (lambda path, _: path.write_text("precious"), "it is not a folder"),
        (lambda path, other: other.rename(path), "no run wrote 'notes.txt' in it"),
    ],
    ids=["link", "file", "folder"],
)
def test_what_is_called_like_an_old_save_and_is_none_stays_and_is_said_once(
    tmp_path, capsys, stands, why
):
    folder, other = tmp_path / "saves", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "notes.txt").write_text("precious")
    stands(folder / "update-00000001", other)
    for updates in (2, 3, 4):
        assert small_save(folder, updates, keep=1).exists()
    assert sorted(os.listdir(folder)) == ["update-00000001", "update-00000004"]
    found = {
        path.read_text()
        for path in (*tmp_path.rglob("notes.txt"), folder / "update-00000001")
        if path.is_file()
    }
    assert found == {"precious"}
    err = capsys.readouterr().err
    assert err == f"warning: --keep 1: {folder}{os.sep}update-00000001 cannot be removed: {why}\n"


def test_names_that_no_save_has_are_no_saves(tmp_path):
    small_save(tmp_path, 2)
    for name in (
        "update-0000000000003",
        "update-3",
        "update-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0663",
    ):
        (tmp_path / name).mkdir()
    assert last_save(tmp_path, "--resume").updates == 2


def test_a_disk_that_is_full_is_named_whoever_writes_to_it(tmp_path):
    """Keras writes by h5py and zipfile, which raise errors of several kinds, at every length."""
    keras = pytest.importorskip("keras")
    network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4000)])  # 140 KiB

    def write(path):
        network.save(path / MODEL)
        (path / OPTIMIZER).write_bytes(b"x" * 50_000)

    with small_disk(tmp_path, "256k") as folder:
        small_save(folder, 1)
        for free in range(4096, 200_000, 28_000):
            fill(folder / "other", free_bytes=free)
            with pytest.raises(
                SaveError, match=r"No space left on device.*update-00000001, and --resume continues"
            ):
                small_save(folder, 2, write=write)
            assert sorted(os.listdir(folder)) == ["other", "update-00000001"]
        assert last_save(folder, "--resume").updates == 1
