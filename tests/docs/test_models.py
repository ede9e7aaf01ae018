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
    assert len(blocks) == 9
    for block in blocks:
        exec(compile(block.replace("/tmp/", f"{tmp_path}/"), "docs/models.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["4", "4", "3"]
    figures = [
        line.split()
        for line in lines
        if line.endswith("MiB") and line.split()[0] in ("VAE", "GAN", "diffusion")
    ]
    assert [name for name, *_ in figures] == [
        "VAE",
        "VAE",
        "GAN",
        "GAN",
        "GAN",
        "diffusion",
        "diffusion",
    ]
    sizes = [float(size) for _, size, _ in figures]
    assert sizes[1] < sizes[0] / 2
    assert sizes[4] < sizes[3] < sizes[2] / 2
    assert sizes[6] < sizes[5] / 2
    assert "predicted peak" in lines[-1]
