"""What draws may be missing: it is said before anything is written, with what to install."""

from __future__ import annotations

import pytest

import recompute_lstm
from keras_recompute.errors import ReportError
from keras_recompute.report import (
    comparison_figure,
    liveness_figure,
    optional_imports,
    write_report,
)
from keras_recompute.report.commands import main
from lstm_example.sweep_report import sweep_figure


@pytest.fixture
def nothing_draws(monkeypatch):
    monkeypatch.setattr(optional_imports, "find_spec", lambda _: None)


@pytest.mark.usefixtures("nothing_draws")
def test_what_is_missing_is_told_before_anything_is_written(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = "a report needs matplotlib, which is not installed: "
    said += r'pip install "keras-recompute\[report\]"'
    for draw in (
        lambda: write_report(program, "report"),
        lambda: liveness_figure(program, "a.png"),
        lambda: comparison_figure([("a", program)], "a.png"),
        lambda: sweep_figure([], "a.png", capacity_bytes=1, title=""),
    ):
        with pytest.raises(ReportError, match=said):
            draw()
    assert recompute_lstm.main(["--report", "report"]) == 2
    assert "--report report: a report needs matplotlib" in capsys.readouterr().err
    (tmp_path / "liveness.json").write_text(program.to_json())
    assert main(["show", "liveness.json"]) == 0
    assert main(["compare", "liveness.json", "liveness.json", "--figure", "a.png"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["liveness.json"]


def test_a_page_needs_more(program, tmp_path, monkeypatch):
    monkeypatch.setattr(
        optional_imports, "find_spec", lambda name: None if name == "plotly" else name
    )
    with pytest.raises(ReportError, match="a report needs plotly"):
        write_report(program, tmp_path / "report", page=True)
    assert not (tmp_path / "report").exists()
