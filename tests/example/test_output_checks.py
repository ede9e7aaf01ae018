"""Where results cannot go is told before training, in one line, and nothing is touched."""

import os
import stat

import pytest

import recompute_lstm
from keras_recompute.report.files import write_report

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")
LONG = "x" * 300


def everything(folder):
    """Return what stands in ``folder``: names, what they are, and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[path] = (mode, path.read_bytes() if stat.S_ISREG(mode) else None)
    return found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with links, a pipe, a file and a folder in it, which is the present one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x" * 5000)
    for link, target in {
        "dangling": "nowhere",
        "one": "two",
        "two": "one",
        "link": "folder",
    }.items():
        (tmp_path / link).symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "liveness.json").write_text("of another run")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"--report {LONG}", ["--report", "too long"]),
        (f"--report new/inside/{LONG}", ["--report", "too long"]),
        (f"--json {LONG}", ["--json", "too long"]),
        (f"--text {LONG}", ["--text", "too long"]),
        ("--report same --json same", ["--json same", "--report same"]),
        ("--report same --json ./folder/../same", ["--json", "--report same"]),
        ("--report link/same --json folder/same", ["--json folder/same", "--report link/same"]),
        ("--report same/inside --json same", ["--json same", "--report same/inside"]),
        (
            "--report folder --json link/liveness.json --force",
            ["--json link/liveness.json", "it is the name of a file of"],
        ),
        (
            "--report folder --json folder/liveness.html --force",
            ["--json folder/liveness.html", "it is the name of a file of"],
        ),
        (
            "--sweep --report folder --json folder/sweep.txt --force",
            ["--json folder/sweep.txt", "it is the name of a file of"],
        ),
        ("--text file --seq-len 9 --json ./file --force", ["--json file", "the text to learn"]),
        ("--text liveness.json --seq-len 9 --report . --force", ["--report", "the text to learn"]),
        ("--report new/..", ["--report new/..", "exists already"]),
        ("--report dangling", ["--report dangling", "nowhere", "does not exist"]),
        ("--report dangling/inside", ["--report dangling/inside", "nowhere", "does not exist"]),
        ("--json dangling --force", ["--json dangling", "nowhere", "does not exist"]),
        ("--report one", ["--report one", "symbolic links"]),
        ("--json one", ["--json one", "symbolic links"]),
        ("--report one/inside", ["--report one/inside", "symbolic links"]),
        ("--json pipe --force", ["--json pipe", "is a pipe"]),
        ("--json /dev/null --force", ["--json /dev/null", "is a device"]),
        ("--report pipe --force", ["--report pipe", "is a pipe"]),
    ],
)
def test_a_place_that_cannot_be_is_told_and_nothing_is_touched(place, capsys, arguments, says):
    before = everything(place)
    assert recompute_lstm.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    for word in says:
        assert word in err
    assert everything(place) == before


def test_a_folder_where_a_file_of_the_report_goes_is_told(place, capsys):
    (place / "folder" / "liveness.png").mkdir()
    assert recompute_lstm.main(["--report", "folder", "--force"]) == 2
    assert "it is a folder, not a file" in capsys.readouterr().err


def test_signs_that_no_terminal_should_get_are_told_as_escapes(place, capsys):
    (place / "a\n\x1b[2Jb").write_text("")
    assert recompute_lstm.main(["--json", "a\n\x1b[2Jb"]) == 2
    assert "a\\n\\x1b[2Jb: it exists already" in capsys.readouterr().err


def test_a_name_that_a_folder_just_takes_is_no_trouble(place):
    from fake_training import PROGRAM

    from lstm_example.run_report import write_figures

    write_figures({"loss": 1}, place / ("y" * 250 + ".json"))
    write_figures({"loss": 1}, place / ("\U0001f40d" * 60 + ".j"))  # 240 bytes and the ending
    write_report(PROGRAM, place / ("y" * 255))
    assert (place / ("y" * 250 + ".json")).read_text() == '{\n "loss": 1\n}\n'


def test_a_link_to_a_file_stays_a_link(place):
    from lstm_example.run_report import write_figures

    (place / "figures").symlink_to("file")
    write_figures({}, place / "figures")
    assert (place / "figures").is_symlink()
    assert (place / "file").read_text() == "{}\n"
