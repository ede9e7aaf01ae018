"""The guides: each runs as a reader would run it, and its page and notebook hold all of it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from docs.guide_pages import GUIDES, ROOT, cells, notebook, page
from keras_recompute.errors import DeviceError
from keras_recompute.liveness.device_compilers import find_device, require_compiler

TEXTS = {guide.stem: guide.read_text() for guide in GUIDES}
NUMBER = re.compile(r"\d[\d.,]*")
WORDS_PER_MINUTE, MINUTES = 200, 10
# It makes devices, which it can do before TensorFlow starts.
ALONE = ("several_devices",)


def shown_lines(source: str) -> list[str]:
    """Return the lines that the text of a guide shows as printed."""
    text = "\n".join(cell.content for cell in cells(source) if cell.is_text)
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    commands = ("pip ", "python3 ", "KERAS_BACKEND=", "keras-recompute ")
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith(commands)]


def skip_without_what_it_needs(name: str) -> None:
    """Skip the guide where a library is missing that it needs."""
    if name == "language_model":
        pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    if name == "device_budget":
        try:
            require_compiler(find_device("t4"))
        except DeviceError as error:
            pytest.skip(str(error))


def printed_by(guide: Path, folder: Path, monkeypatch: Any, capsys: Any) -> list[str]:
    """Return the lines that a guide prints, run in this process where it can be."""
    if guide.stem not in ALONE:
        monkeypatch.chdir(folder)
        keras.backend.clear_session()
        runpy.run_path(str(guide), run_name="__main__")
        return capsys.readouterr().out.splitlines()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, str(guide)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def case(guide: Path) -> Any:
    """Return a guide as a case. CI runs all but those that need what CI has not."""
    marks = [pytest.mark.exhaustive] if guide.stem in ("language_model", "device_budget") else []
    return pytest.param(guide, marks=marks, id=guide.stem)


@pytest.mark.long
@pytest.mark.parametrize("guide", [case(guide) for guide in GUIDES])
def test_the_guide_runs_and_prints_what_it_shows(guide, tmp_path, monkeypatch, capsys):
    skip_without_what_it_needs(guide.stem)
    lines = printed_by(guide, tmp_path, monkeypatch, capsys)
    printed = [NUMBER.sub("#", line) for line in lines]
    figures = [NUMBER.findall(line) for line in lines]
    for line in shown_lines(TEXTS[guide.stem]):
        where = printed.index(NUMBER.sub("#", line))
        for shown, found in zip(NUMBER.findall(line), figures[where]):
            assert float(found) == pytest.approx(float(shown), rel=0.3), line


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_guide_has_what_every_guide_has(guide):
    found = list(cells(TEXTS[guide.stem]))
    text = "\n".join(cell.content for cell in found if cell.is_text)
    code = "\n".join(cell.content for cell in found if not cell.is_text)
    assert len(text.split()) / WORDS_PER_MINUTE + code.count("\n") / 30 <= MINUTES
    assert "| | TensorFlow | JAX | PyTorch |" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-2:] == [
        "Where backends differ",
        "If it does not save enough",
    ]
    assert "assert" in code


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_page_and_notebook_have_all_of_its_code(guide):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    code = [cell.content for cell in cells(TEXTS[guide.stem]) if not cell.is_text]
    book = nbformat.reads(notebook(guide), as_version=4)
    nbformat.validate(book)
    assert [cell.source for cell in book.cells if cell.cell_type == "code"] == code
    assert re.findall(r"^```python\n(.*?)\n```$", page(guide), re.DOTALL | re.MULTILINE) == code


def test_a_guide_is_split_into_text_and_code():
    head = '"""\nTitle: A\nDescription: B.\n"""\n\n"""\ntext\n"""\n\n'
    source = head + 'x = """no text"""\n\n\n"""more"""\n'
    assert [tuple(cell) for cell in cells(source)] == [
        (True, "# A\n\nB."),
        (True, "text"),
        (False, 'x = """no text"""'),
        (True, "more"),
    ]
