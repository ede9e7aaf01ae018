"""The list of Graphcore's scripts that run: how outcomes are told apart, and docs/ipu.md against the rows."""

from __future__ import annotations

import sys

import pytest

from benchmarks import ipu_conformance as conformance
from benchmarks.ipu_conformance import FAILED, OUT, PASS, REFUSED, UNFINISHED, Row, Script

REFUSAL = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
keras_recompute.errors.UnsupportedError: x (1) is not emulated on stock TensorFlow: because
"""


@pytest.mark.parametrize(
    ("code", "errors", "expected"),
    [
        (0, "ValueError: said on the way", (PASS, "")),
        (1, REFUSAL, (REFUSED, "x (1) is not emulated on stock TensorFlow: because")),
        (1, "ModuleNotFoundError: No module named 'wandb'\n", (FAILED, "ModuleNotFoundError: No module named 'wandb'")),
        (-9, "", (FAILED, "exit code -9")),
        (None, "", (UNFINISHED, "")),
    ],
)
def test_outcomes(code, errors, expected):
    assert conformance.outcome_of(code, errors) == expected


def test_scripts_run_in_a_copy_of_their_folder(tmp_path, monkeypatch):
    """By a Python that stands for this one: it writes, fails, and waits for as long as its script says."""
    folder = tmp_path / "repository" / "scripts"
    folder.mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (folder / "near.py").write_text("here = 1\n")
    (folder / "good.py").write_text("import near\nopen('left.txt', 'w').write('x')\n")
    (folder / "bad.py").write_text("raise ValueError('no')\n")
    (folder / "slow.py").write_text("import time\ntime.sleep(600)\n")
    outcomes = {}
    for name in ("good", "bad", "slow", "absent"):
        row = conformance.run(Script("a/b", f"scripts/{name}.py"), tmp_path / "repository", 60 if name != "slow" else 1, None)
        outcomes[name] = (row.outcome, row.reason)
    assert outcomes == {
        "good": (PASS, ""),
        "bad": (FAILED, "ValueError: no"),
        "slow": (UNFINISHED, "after 1 s"),
        "absent": (FAILED, "it is not in this checkout"),
    }
    assert not (folder / "left.txt").exists()
    assert conformance.run(Script("a/b", "x.py", out_of_scope="why"), tmp_path, 1, None) == Row("a/b", "x.py", OUT, "why")


def test_the_page_has_the_rows_of_the_last_run():
    """If this fails: python3 benchmarks/ipu_conformance.py with checkouts of the repositories."""
    page = conformance.PAGE.read_text(encoding="utf-8")
    rows = conformance.known_rows()
    assert conformance.filled(page, rows) == page
    assert "<!-- conformance: python3 benchmarks/ipu_conformance.py -->" in page
    known = {(script.repository, script.path) for script in conformance.SCRIPTS}
    assert {(row.repository, row.path) for row in rows} <= known
    assert len(known) == len(conformance.SCRIPTS)


def test_data_sets_are_made_up(tmp_path):
    import numpy as np

    conformance.make_up_data(tmp_path)
    with np.load(tmp_path / "datasets" / "mnist.npz") as images:
        assert images["x_train"].shape[1:] == (28, 28)
        assert images["y_test"].max() < 10
    with np.load(tmp_path / "datasets" / "imdb.npz", allow_pickle=True) as texts:
        assert len(texts["x_train"]) == len(texts["y_train"])
        assert min(texts["x_train"][0]) > 0
