"""docs/ipu.md against the code: its tables are those of the lists, and its Python runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_recompute.ipu.configuration import support_tables
from keras_recompute.ipu.configuration.options import OPTIONS
from keras_recompute.ipu.configuration.refusals import UNSUPPORTED
from keras_recompute.ipu.names.installation import NAMES

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "ipu.md"
TEXT = PATH.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_lists():
    """If this fails: python3 -m keras_recompute.ipu.configuration.support_tables docs/ipu.md"""
    assert support_tables.filled(TEXT) == TEXT
    for feature, why in UNSUPPORTED.items():
        assert f"| {feature} | {why} |" in TEXT
    for option in OPTIONS:
        assert f"`{option.name}`" in TEXT


def test_writing_the_tables(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- table: unsupported -->\nold\n<!-- end -->\nb\n")
    assert support_tables.main([str(path)]) == 0
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("a", "b", 2 + 2 + 2 + len(UNSUPPORTED))
    path.write_text("<!-- table: nothing -->\n<!-- end -->\n")
    with pytest.raises(KeyError):
        support_tables.main([str(path)])
    assert path.read_text() == "<!-- table: nothing -->\n<!-- end -->\n", "whole or not at all"


def test_the_names_are_there():
    modules = {name.rpartition(".")[2] for name in NAMES}
    row = next(
        line
        for line in TEXT.splitlines()
        if line.startswith("| `from tensorflow.python import ipu`")
    )
    assert set(re.findall(r"`(\w+)`", row)) <= modules


@pytest.mark.long
def test_the_python_runs(tmp_path):
    """The script sets the environment, so it runs in a process of its own."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "script.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    peak, _, note = done.stdout.splitlines()[-1].partition(" ")
    assert int(peak) > 8 * 4 * (4 + 8) * 4, "at least the kernels of the first layer"
    assert "spread evenly" in note
    assert len(list((tmp_path / "profile").iterdir())) == 1
