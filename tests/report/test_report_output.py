"""What is printed: the first failure is noted, nothing raises, and the files of others stay what
they are.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.report.output import print_error, watch_output

ROOT = Path(__file__).parents[2]


class Full(io.StringIO):
    """A stream that takes ten characters."""

    def write(self, text: str) -> int:
        if len(self.getvalue()) + len(text) > 10:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_what_is_printed_arrives(capsys):
    with watch_output() as output:
        print("heard")
        assert not output.isatty()
    print("and after")
    assert output.error is None
    assert capsys.readouterr().out == "heard\nand after\n"


def test_a_stream_that_takes_no_more_is_noted_once(monkeypatch):
    stream = Full()
    monkeypatch.setattr(sys, "stdout", stream)
    with watch_output() as output:
        print("first")
        print("too long for it")
        print("last")
    assert stream.getvalue() == "first\n"
    assert (
        str(output.error)
        == "standard output cannot be written: No space left on device. The rest was not printed"
    )
    assert sys.stdout is stream


def test_a_closed_stream_is_noted(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with watch_output() as output:
        print("nobody hears it", flush=True)
    assert str(output.error) == "standard output is closed: nothing was printed"
    assert sys.stdout is None


def test_signs_that_the_stream_has_not_become_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with watch_output() as output:
        print("\u00e9 \udcff")
    assert output.error is None
    assert raw.getvalue() == b"\\xe9 \\udcff\n"


def test_a_complaint_is_one_line_whatever_is_in_it(capsys, monkeypatch):
    print_error("a\nb\x1b[2J\udcff")
    assert capsys.readouterr() == ("", "a\\nb\\x1b[2J\\udcff\n")
    for stream in (None, Full()):
        monkeypatch.setattr(sys, "stderr", stream)
        print_error("more than ten characters")
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes descriptors")
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path):
    """What a library printed would stand in it."""
    code = (
        "import os, sys; from keras_recompute.report.output import watch_output\n"
        "with watch_output(), open(sys.argv[1], 'w') as file: assert file.fileno() > 2; "
        "os.write(1, b'x'); os.write(2, b'x')"
    )
    shell = [
        "/bin/sh",
        "-c",
        'exec "$@" <&- >&- 2>&-',
        "sh",
        sys.executable,
        "-c",
        code,
        str(tmp_path / "file"),
    ]
    assert subprocess.run(shell, cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""
