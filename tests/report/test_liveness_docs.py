"""docs/liveness.md against the code: its Python runs, its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from keras_recompute.report import commands

TEXT = (Path(__file__).parents[2] / "docs" / "liveness.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_python_runs(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    import keras_recompute.engine  # noqa: F401  # before XLA compiles anything in this process, which later tests share

    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/liveness.md", "exec"), names)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "liveness.hlo_proto.pb",
        "liveness.json",
        "liveness.png",
    ]
    for line in (
        ["show", "run"],
        ["top", "run", "--by", "layer"],
        ["export", "run", "--to", "xprof"],
    ):
        assert commands.main(line) == 0


def test_the_commands_are_those_of_the_help():
    shown = re.findall(r"^python3 -m keras_recompute\.liveness (.*?)   ", TEXT, re.MULTILINE)
    assert {line.split()[0] for line in shown} == {"show", "compare", "top", "open"}
    for line in shown:
        commands._parser("keras-recompute", "").parse_args(shlex.split(line))
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(commands.FORMATS)
