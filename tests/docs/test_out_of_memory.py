"""docs/out-of-memory.md against the code: its script, what the command says of it, its lines."""

import io
import re
import sys
from pathlib import Path

import keras
import pytest
from rich.console import Console

from keras_recompute.doctor.command import main

PAGE = (Path(__file__).parents[2] / "docs" / "out-of-memory.md").read_text()
# Languages and contents of the blocks.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [block for language, block in BLOCKS if language == "python"]
OUTPUTS = [block for language, block in BLOCKS if not language]


class Left(BaseException):
    """Stands for the end of the process."""


def left(code):
    raise Left(code)


@pytest.mark.long
def test_the_script_is_diagnosed_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    keras.backend.clear_session()
    Path("train.py").write_text(PYTHON[0])
    shown = io.StringIO()
    with pytest.raises(Left, match=r"^0$"):
        main(["train.py"], console=Console(file=shown, width=100), leave=left)
    (said,) = [each for each in OUTPUTS if each.startswith("One step takes")]
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert set(said.splitlines()) - {""} <= {*lines}
    assert "model = kr.checkpointed(model, every=3)" in lines


@pytest.mark.long
def test_the_lines_run(capsys):
    keras.backend.clear_session()
    names = {}
    for block in PYTHON:
        exec(block.replace("model.fit(x, y, batch_size=1024)", ""), names)
    assert capsys.readouterr().out.splitlines()[-1] == OUTPUTS[-1].strip()
