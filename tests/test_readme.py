"""The README is held against the code: its Python runs, its commands exist, its table is the one that was measured."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_the_python_runs(capsys):
    scope = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), scope)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("float32[8,64] named 'half'")
    peak, always_live = (int(number) for number in lines[-1].split()[:2])
    assert peak > always_live > 0


def test_the_options_exist(capsys):
    import recompute_lstm

    assert recompute_lstm.main(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    scripts = re.findall(r"python3 recompute_lstm\.py[^`\n]*", TEXT)
    table = re.findall(r"^\| (`--.*?) \|", TEXT, re.MULTILINE)
    used = set(re.findall(r"--[a-z][a-z-]+", " ".join(scripts + table)))
    assert used
    assert used <= known


def test_the_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_the_table_is_the_measured_one():
    from benchmarks.checkpoints import RESULTS, table

    shown = re.search(r"<!-- table:checkpoints -->\n(.*?)\n<!-- /table", TEXT, re.DOTALL)
    assert shown
    assert shown.group(1) == table(json.loads(RESULTS.read_text()))


def test_the_table_of_devices_is_the_compiled_one():
    from benchmarks.devices import DEVICES, RESULTS, table

    shown = re.search(r"<!-- table:devices -->\n(.*?)\n<!-- /table", TEXT, re.DOTALL)
    assert shown
    assert shown.group(1) == table(json.loads(RESULTS.read_text()), DEVICES)


def test_the_half_hour_of_text_is_the_measured_one():
    from benchmarks.text import RESULTS

    found = json.loads(RESULTS.read_text())
    for rows in found["rows"].values():
        assert f"{rows[-1]['held_back']:.2f} bits per byte after {rows[-1]['updates']} updates" in TEXT
    assert found["generated"].split() == re.search(r"^```\n(def .*?)^```", TEXT, re.DOTALL | re.MULTILINE).group(1).split()


@pytest.mark.parametrize("package", ["tensorflow", "keras", "jinja2", "lazy_loader", "matplotlib", "plotly", "rich"])
def test_requirements_and_package_agree(package):
    """Both are read by installers, so both must say the same."""

    def bounds(text):
        return {re.sub(r"\s", "", b) for b in re.findall(rf"{package}(?:-cpu)?\s*(>=[^;\"\n]*)", text)}

    assert bounds((ROOT / "requirements.txt").read_text()) == bounds((ROOT / "pyproject.toml").read_text())
