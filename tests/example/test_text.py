"""The text to learn: of a file no more is read than is learnt, and what is no file is refused."""

import os
from types import SimpleNamespace

import pytest

import recompute_lstm
from keras_recompute.errors import RecomputeError
from lstm_example.data import find_text
from lstm_example.progress import Progress


def text_of(path, seq_len=3):
    return find_text(SimpleNamespace(text=path, seq_len=seq_len, validation=None))


def test_a_text_larger_than_any_memory_is_read_where_it_is_learnt(tmp_path):
    path, end = tmp_path / "text", 2**40
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(end - 3)
        file.write(b"end")
    assert path.stat().st_blocks * 512 < 2**20, "the file has holes, or this test fills a disk"
    text = text_of(path)
    assert text.length == end
    assert list(text.stretches([0, 2**39, end - 3], 3)) == [b"beg", b"\0\0\0", b"end"]


def test_the_reference_is_read_the_same_way():
    text = text_of(None)
    whole = b"".join(text.stretches([0], text.length))
    assert list(text.stretches([7, text.length - 4], 4)) == [whole[7:11], whole[-4:]]


def test_a_text_that_becomes_shorter_is_told(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"0123456789")
    text = text_of(path)
    path.write_bytes(b"01234")
    with pytest.raises(RecomputeError, match="10 bytes when the run began"):
        list(text.stretches([0, 4], 3))
    path.unlink()
    with pytest.raises(RecomputeError, match="can no longer be read"):
        list(text.stretches([0], 3))


@pytest.mark.long
def test_a_text_that_becomes_shorter_in_training_is_one_line(tmp_path, capsys, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)) * 4)
    monkeypatch.setattr(Progress, "update", lambda *_: path.write_bytes(b"short"))
    small = "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    small += "--steps-per-epoch 20 --quiet"
    assert recompute_lstm.main([*small.split(), "--checkpoints", "1", "--text", str(path)]) == 1
    err = capsys.readouterr().err
    assert (
        err == f"recompute_lstm.py: --text {path}: it had 1024 bytes when the run began, "
        "and has fewer now\n"
    )


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices as POSIX has them")
@pytest.mark.parametrize(
    ("name", "says"), [("pipe", "a pipe"), ("/dev/zero", "a device"), ("folder", "directory")]
)
def test_what_may_never_end_is_refused(tmp_path, monkeypatch, capsys, name, says):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    assert recompute_lstm.main(["--text", name]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert f"--text {name}" in err
    assert says in err


@pytest.mark.parametrize("seed", [2**32, 10**30, -1])
def test_a_seed_that_no_generator_takes_is_refused(capsys, seed):
    assert recompute_lstm.main(["--seed", str(seed)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert "--seed" in err
    assert str(seed) in err


def test_the_largest_seed_is_taken():
    from lstm_example.arguments import parse_arguments

    np = pytest.importorskip("numpy")
    np.random.RandomState(parse_arguments(["--seed", str(2**32 - 1)], "").seed)
