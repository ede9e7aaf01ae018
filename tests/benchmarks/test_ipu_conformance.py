"""The list of Graphcore's scripts that run: how outcomes are told apart, and docs/ipu.md against
the rows.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks import ipu_addon_tests as addons
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
        (
            1,
            "ModuleNotFoundError: No module named 'wandb'\n",
            (FAILED, "ModuleNotFoundError: No module named 'wandb'"),
        ),
        (-9, "", (FAILED, "exit code -9")),
        (None, "", (UNFINISHED, "")),
    ],
)
def test_outcomes(code, errors, expected):
    assert conformance.outcome_of(code, errors) == expected


def test_scripts_run_in_a_copy_of_their_folder(tmp_path, monkeypatch):
    """By a Python that stands for this one: it writes, fails, and waits for as long as its script
    says.
    """
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
        row = conformance.run(
            Script("a/b", f"scripts/{name}.py"),
            tmp_path / "repository",
            60 if name != "slow" else 1,
            None,
        )
        outcomes[name] = (row.outcome, row.reason)
    assert outcomes == {
        "good": (PASS, ""),
        "bad": (FAILED, "ValueError: no"),
        "slow": (UNFINISHED, "after 1 s"),
        "absent": (FAILED, "it is not in this checkout"),
    }
    assert not (folder / "left.txt").exists()
    assert conformance.run(Script("a/b", "x.py", out_of_scope="why"), tmp_path, 1, None) == Row(
        "a/b", "x.py", OUT, "why"
    )


def test_the_page_has_the_rows_of_the_last_run():
    """If this fails: python3 benchmarks/ipu_conformance.py with checkouts of the repositories."""
    page = conformance.PAGE.read_text(encoding="utf-8")
    rows = conformance.known_rows()
    assert conformance.filled(page, rows) == page
    assert "<!-- conformance: python3 benchmarks/ipu_conformance.py -->" in page
    assert addons.filled(page, addons.known_cases()) == page
    assert "<!-- addons: python3 benchmarks/ipu_conformance.py --addons -->" in page
    assert {case.path for case in addons.known_cases()} == set(addons.FILES)
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


CASES = """import unittest
class Some(unittest.TestCase):
    def test_good(self): ...
    @test_util.deprecated_graph_mode_only
    def test_session_of_1(self): ...
"""
PRINTED = """[ RUN      ] Some.test_good
[       OK ] Some.test_good
[  FAILED  ] Some.test_session_of_1
[  FAILED  ] Some.test_words
[  FAILED  ] Some.test_refused
[  FAILED  ] Some.test_eight_bits
[  FAILED  ] Some.test_wrong0 (True)
[  SKIPPED ] Some.test_left_out
[  SKIPPED ] Some.test_session - Not a test.
"""
NOT_HERE = "keras_recompute.errors.UnsupportedError: not here: leave it out"
EIGHT_BITS = "a.b.AbsentNameError: 8-bit floating point is not emulated"
WORDS = 'AssertionError: "a rate" does not match "a number"'
ERRORS = {
    "ERROR: test_session_of_1 (__main__.Some.test_session_of_1)": "RuntimeError: no session",
    "FAIL: test_words (__main__.Some.test_words)": WORDS,
    "ERROR: test_refused (__main__.Some.test_refused)": NOT_HERE,
    "ERROR: test_eight_bits (__main__.Some.test_eight_bits)": EIGHT_BITS,
    "FAIL: test_wrong0 (True) (__main__.Some)": "AssertionError: \nNot equal to tolerance",
}


def test_what_became_of_each_case_of_a_test_file():
    printed = PRINTED + "".join(
        f"{'=' * 70}\n{heading}\n{'-' * 70}\n{error}\n\n" for heading, error in ERRORS.items()
    )
    found = {
        case.case: (case.outcome, case.reason)
        for case in addons.cases("some_test.py", CASES, printed)
    }
    assert found == {
        "Some.test_good": (addons.PASS, ""),
        "Some.test_session_of_1": (OUT, "it runs a session of TensorFlow 1"),
        "Some.test_words": (addons.WORDS, '"a rate" does not match "a number"'),
        "Some.test_refused": (REFUSED, "not here: leave it out"),
        "Some.test_eight_bits": (OUT, "8-bit floating point is not emulated"),
        "Some.test_wrong0": (FAILED, "AssertionError: Not equal to tolerance"),
        "Some.test_left_out": (FAILED, "it skips itself"),
    }
    table = addons.table(addons.cases("some_test.py", CASES, printed))
    assert table.startswith("1 of 4 cases pass that neither compare")
    assert "| `some_test.py` | 1 | 1 | 1 | 2 | 2 |" in table


def test_a_test_file_that_does_not_get_to_its_cases(tmp_path):
    (tmp_path / "early_test.py").write_text("import nothing_of_the_kind\n")
    [row] = addons.run("early_test.py", tmp_path, 100)
    assert row == addons.Case(
        "early_test.py", "", FAILED, "ModuleNotFoundError: No module named 'nothing_of_the_kind'"
    )
    assert addons.run("absent_test.py", tmp_path, 1)[0].reason == "it is not in this checkout"
