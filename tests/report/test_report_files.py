"""Reports in a folder: whole or not there."""

from __future__ import annotations

import os

import pytest

from keras_recompute.atomic_files import atomic_write, check_atomic_write
from keras_recompute.errors import ReportError
from keras_recompute.liveness import Program
from keras_recompute.report import write_report


def test_both_files_are_written_and_read_back(program, tmp_path):
    folder = tmp_path / "deep" / "report"
    assert write_report(program, folder) == [folder / "liveness.json", folder / "liveness.png"]
    assert Program.read(folder / "liveness.json") == program
    assert sorted(p.name for p in folder.iterdir()) == ["liveness.json", "liveness.png"]


def test_a_page_is_written_if_asked_for_and_none_of_another_program_stays(program, tmp_path):
    for library in ("plotly", "jinja2"):
        pytest.importorskip(library, reason=f"the page needs {library}, which is not installed")
    written = write_report(program, tmp_path, title="LSTM, 7 checkpoints", page=True)
    assert [p.name for p in written] == ["liveness.json", "liveness.png", "liveness.html"]
    assert "<title>LSTM, 7 checkpoints</title>" in written[-1].read_text(encoding="utf-8")
    write_report(program, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["liveness.json", "liveness.png"]


def test_an_older_report_is_replaced(program, tmp_path):
    (tmp_path / "liveness.json").write_text("old")
    write_report(program, tmp_path)
    assert Program.read(tmp_path / "liveness.json") == program


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError), atomic_write(tmp_path / "a.txt") as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise KeyError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_files_are_as_readable_as_others(tmp_path):
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
    (tmp_path / "b.txt").write_text("")
    assert os.stat(tmp_path / "a.txt").st_mode == os.stat(tmp_path / "b.txt").st_mode


def test_a_folder_that_cannot_be_made_is_refused(program, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be created"):
        write_report(program, tmp_path / "file" / "report")


def test_a_trial_leaves_nothing(tmp_path):
    check_atomic_write(tmp_path / "deep" / "folder" / "a.txt")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="too long"):
        check_atomic_write(tmp_path / "deep" / ("x" * 300) / "a.txt")
    with pytest.raises(OSError, match="too long"):
        check_atomic_write(tmp_path / "deep" / ("x" * 300))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.txt").write_text("old")
    check_atomic_write(tmp_path / "a.txt")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
def test_what_is_no_file_is_not_replaced(tmp_path):
    """A user who may do anything would lose a device to a file of its name."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="it is a pipe, not a file"), atomic_write(
        tmp_path / "pipe"
    ):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_what_is_in_the_way_of_a_report_is_told(program, tmp_path):
    (tmp_path / "liveness.html").mkdir()
    with pytest.raises(ReportError, match="belongs to another report and cannot be removed"):
        write_report(program, tmp_path)
