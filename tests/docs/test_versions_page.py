"""docs/versions.md against what was tried, and against what the package asks for."""

import json
import re
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement

from benchmarks import versions

tomllib = pytest.importorskip("tomllib", reason="it is in Python from 3.11 on")
PAGE = versions.PAGE.read_text()
TRIED = json.loads(versions.RESULTS.read_text())
PROJECT = tomllib.loads((versions.ROOT / "pyproject.toml").read_text())["project"]


def asked(package):
    """Return the versions that the package asks for, of Keras or of a backend."""
    extra = PROJECT["optional-dependencies"].get(package, PROJECT["dependencies"])
    return Requirement(extra[0]).specifier


def test_each_backend_was_tried():
    assert {"tensorflow", "jax", "torch"} <= set(TRIED) <= set(versions.ENVIRONMENTS)


def test_the_table_is_what_was_tried():
    assert f"<!-- table:versions -->\n{versions.table(TRIED)}\n<!-- /table" in PAGE


@pytest.mark.parametrize("environment", TRIED)
def test_what_was_tried_is_what_the_package_asks_for(environment):
    row = TRIED[environment]
    package = "tensorflow" if environment == "oldest" else environment.partition("-")[0]
    assert row["backend"] in asked(package)
    assert row["keras"] in asked("keras")
    assert row["passed"] > 0


def test_the_page_names_the_versions_that_the_package_asks_for():
    cells = re.search(r"^\| Keras \| .*\n.*\n\| (.*) \|$", PAGE, re.MULTILINE)[1].split(" | ")
    for package, cell in zip(("keras", "tensorflow", "jax", "torch"), cells):
        first, _, last = cell.partition(" to ")
        major, minor = (last or first).split(".")
        assert str(asked(package)) in (
            f"<{major}.{int(minor) + 1},>={first}",
            f">={first},<{major}.{int(minor) + 1}",
        )
    classifiers = [each.rpartition(" ")[2] for each in PROJECT["classifiers"]]
    pythons = [name for name in classifiers if re.fullmatch(r"3\.\d+", name)]
    assert cells[-1].startswith(f"{pythons[0]} to {pythons[-1]}")


def results(path, **counts):
    suite = ElementTree.Element("testsuite", {name: str(n) for name, n in counts.items()})
    suite.set("timestamp", "2026-11-27T10:00:00")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path)
    return path


def test_tests_are_added_up(tmp_path):
    files = [
        results(tmp_path / "1.xml", tests=5, skipped=2, failures=0, errors=0),
        results(tmp_path / "2.xml", tests=1, skipped=0, failures=0, errors=0),
    ]
    row = versions.record("tensorflow", files)
    assert (row["passed"], row["skipped"], row["day"]) == (4, 2, "2026-11-27")


@pytest.mark.parametrize("kind", ["failures", "errors"])
def test_what_failed_is_no_record(kind, tmp_path):
    counts = {"tests": 2, "failures": 0, "errors": 0, kind: 1}
    with pytest.raises(SystemExit, match="tests failed"):
        versions.record("tensorflow", [results(tmp_path / "1.xml", **counts)])
