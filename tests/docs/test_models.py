"""docs/models.md against the code: its Python runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.long
def test_the_python_runs(capsys, tmp_path):
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block.replace("/tmp/", f"{tmp_path}/"), "docs/models.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["4", "4", "3"]
    assert "checkpoints: predicted peak" in lines[-1]
