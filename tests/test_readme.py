"""The README and its guides against the code: Python, commands, tables."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = (ROOT / "docs" / "example.md").read_text()
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
GUIDES = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("ipu", "limits"))
TEXT = f"{README}\n{EXAMPLE}\n{BENCHMARKS}\n{GUIDES}"


def run_python(text, name):
    """Run the blocks of a document one after the other, in one scope."""
    scope = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, name, "exec"), scope)
    return blocks


def shown_table(text, name):
    """Return the table between the comments with this name."""
    shown = re.search(rf"<!-- table:{name} -->\n(.*?)\n<!-- /table", text, re.DOTALL)
    assert shown, name
    return shown.group(1)


def assert_peak_above_always_live(line):
    peak, always_live = (int(number) for number in line.split()[:2])
    assert peak > always_live > 0


def test_the_python_of_the_readme_runs(capsys):
    assert len(run_python(README, "README.md")) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("float32[8,64] named 'half'")
    assert_peak_above_always_live(lines[-1])


def test_the_python_of_the_example_runs(capsys):
    assert len(run_python(EXAMPLE, "docs/example.md")) == 2
    assert_peak_above_always_live(capsys.readouterr().out.splitlines()[-1])


def test_the_options_exist(capsys):
    import recompute_lstm

    assert recompute_lstm.main(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    scripts = re.findall(r"python3 recompute_lstm\.py[^`\n]*", TEXT)
    table = re.findall(r"^\| (`--.*?) \|", EXAMPLE, re.MULTILINE)
    used = set(re.findall(r"--[a-z][a-z-]+", " ".join(scripts + table)))
    assert len(used) > 15
    assert used <= known


def test_the_programs_exist():
    programs = set(re.findall(r"python3 ([\w/]+\.py)", TEXT))
    assert {"recompute_lstm.py", "benchmarks/compare.py"} < programs
    for program in programs - {"train.py"}:  # the reader's
        assert (ROOT / program).exists(), program


def test_the_tables_of_the_comparison_are_the_measured_ones(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from comparison import SUMMARY_ROWS, Comparison, summary, table

    results = ROOT / "benchmarks" / "results"
    found = {name: Comparison.read(results / f"compare-{name}.json") for name, _ in SUMMARY_ROWS}
    assert shown_table(README, "compare") == summary(found)
    assert shown_table(BENCHMARKS, "compare") == table(found["lstm"], main_only=True)


def test_the_table_of_checkpoints_is_the_measured_one():
    from benchmarks.checkpoints import RESULTS, table

    rows = json.loads(RESULTS.read_text())
    assert shown_table(BENCHMARKS, "checkpoints") == table(rows)
    compiled = re.findall(
        r"^\| (?:0|7) \| .*? \| (.*?) \|", shown_table(BENCHMARKS, "checkpoints"), re.MULTILINE
    )
    assert f"{compiled[0]} compiled\nwithout checkpoints, {compiled[1]} with 7" in README


def test_the_table_of_devices_is_the_compiled_one():
    from benchmarks.devices import DEVICES, RESULTS, table

    assert shown_table(BENCHMARKS, "devices") == table(json.loads(RESULTS.read_text()), DEVICES)


def test_the_half_hour_of_text_is_the_measured_one():
    from benchmarks.text import RESULTS

    found = json.loads(RESULTS.read_text())
    words = " ".join(EXAMPLE.split())
    for rows in found["rows"].values():
        assert (
            f"{rows[-1]['held_back']:.2f} bits per byte after {rows[-1]['updates']} updates"
            in words
        )
    generated = re.search(r"^```\n(def .*?)^```", EXAMPLE, re.DOTALL | re.MULTILINE)
    assert found["generated"].split() == generated.group(1).split()


@pytest.mark.parametrize(
    "package", ["tensorflow", "keras", "jinja2", "lazy_loader", "matplotlib", "plotly", "rich"]
)
def test_requirements_and_package_agree(package):
    """Both are read by installers, so both must say the same."""

    def bounds(text):
        return {
            re.sub(r"\s", "", b) for b in re.findall(rf"{package}(?:-cpu)?\s*(>=[^;\"\n]*)", text)
        }

    assert bounds((ROOT / "requirements.txt").read_text()) == bounds(
        (ROOT / "pyproject.toml").read_text()
    )
