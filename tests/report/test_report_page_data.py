"""The data of the report page: the records it carries, escaped, and the command that writes it."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.liveness import Program
from keras_recompute.report import optional_imports, write_page
from keras_recompute.report.commands import main
from keras_recompute.report.page import page_data

HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
HOSTILE += '\u2028"&amp;[/b]\x1b[2J'


def needs(*names):
    for name in names:
        pytest.importorskip(name, reason=f"the page needs {name}, which is not installed")


def test_the_page_carries_the_records(program):
    (entry,) = json.loads(page_data([("small", program)]))
    assert entry["label"] == "small"
    assert Program.from_json(json.dumps(entry["document"])) == program


def test_no_name_can_leave_its_place(program):
    buffers = tuple(dataclasses.replace(b, name=HOSTILE, layer=HOSTILE) for b in program.buffers)
    data = page_data([(HOSTILE, dataclasses.replace(program, name=HOSTILE, buffers=buffers))])
    assert not re.search("[<>&\u2028\u2029\x1b]", data)
    assert json.loads(data)[0]["document"]["texts"].count(HOSTILE) == 1


def test_a_page_shows_one_or_two_programs(program, tmp_path):
    for count in (0, 3):
        with pytest.raises(InvalidArgumentError, match=f"not {count}"):
            write_page([("a", program)] * count, tmp_path / "page.html")


def test_a_missing_library_is_said(program, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(optional_imports, "import_module", missing)
    with pytest.raises(ReportError, match="a report needs jinja2"):
        write_page([("a", program)], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_same_program_gives_the_same_page_and_all_of_it(program, tmp_path):
    needs("plotly", "jinja2")
    one, two = (
        write_page([("a", program)], tmp_path / f"{n}.html", title="T<i>").read_text()
        for n in (1, 2)
    )
    assert one == two
    assert "<title>T&lt;i&gt;</title>" in one
    # the only addresses a browser would load from
    assert not re.search(
        r"<(?:script|link|img|iframe)[^>]+(?:src|href)=",
        one[: one.index('<script type="application/json"')],
    )


def test_the_command_writes_a_page(program, tmp_path, capsys):
    needs("plotly", "jinja2")
    (tmp_path / "liveness.json").write_text(program.to_json())
    assert main(["export", str(tmp_path), "--to", "html"]) == 0
    assert (tmp_path / "liveness.html").exists()
    assert (
        main(
            [
                "open",
                str(tmp_path),
                str(tmp_path),
                "--output",
                str(tmp_path / "liveness.html"),
                "--no-browser",
            ]
        )
        == 2
    )
    assert "--force" in capsys.readouterr().err
    assert (
        main(
            [
                "open",
                str(tmp_path),
                str(tmp_path),
                "--output",
                str(tmp_path / "ab.html"),
                "--no-browser",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.strip() == str(tmp_path / "ab.html")
