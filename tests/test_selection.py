"""Which tests run: each keeps a case in ``.ci/run``, and each backend has its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


class Case:
    """What the hook of ``conftest.py`` asks of a collected test."""

    def __init__(self, nodeid: str, *marks: str, **of_long: bool):
        self.nodeid, self.marks, self.of_long = nodeid, set(marks), of_long

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name)(**self.of_long).mark] if name in self.marks else []

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


@pytest.fixture
def plugin(request):
    """The ``conftest.py`` of the whole suite."""
    plugins = request.config.pluginmanager.get_plugins()
    (found,) = [each for each in plugins if hasattr(each, "mark_exhaustive_cases")]
    return found


@pytest.fixture
def mark(plugin):
    return plugin.mark_exhaustive_cases


def exhaustive(cases: list[Case]) -> list[str]:
    return [case.nodeid for case in cases if "exhaustive" in case.marks]


def test_of_the_long_cases_of_a_test_the_last_and_every_35th_before_it_stay(mark):
    cases = [Case(f"a.py::test[{number}]", "long") for number in range(40)]
    mark(cases)
    left_out = [number for number in range(40) if number not in (4, 39)]  # 4 = 39 - 35
    assert exhaustive(cases) == [f"a.py::test[{number}]" for number in left_out]


def test_quick_cases_and_tests_of_a_single_case_stay(mark):
    cases = [
        *(Case(f"a.py::test[{n}]") for n in range(9)),
        Case("a.py::test[9]", "long"),
        Case("a.py::other", "long"),
    ]
    mark(cases)
    assert exhaustive(cases) == []


def test_cases_of_which_ci_runs_every_one_stay(mark):
    cases = [
        *(Case(f"a.py::test[{n}]", "long", every_case=True) for n in range(9)),
        *(Case(f"a.py::test[{n}]", "long", every_case=n % 2 == 0) for n in range(9, 13)),
    ]
    mark(cases)
    assert exhaustive(cases) == ["a.py::test[9]"]  # 11 is the last of the others


def test_a_test_that_names_its_exhaustive_cases_keeps_the_others(mark):
    cases = [
        Case(f"a.py::test[{n}]", "long", *(["exhaustive"] if n == 1 else [])) for n in range(9)
    ]
    mark(cases)
    assert exhaustive(cases) == ["a.py::test[1]"]


def configured(plugin, source: str, given: str) -> list[str]:
    """What pytest runs when it is given that much."""
    config = SimpleNamespace(
        args=[given],
        args_source=pytest.Config.ArgsSource[source],
        addinivalue_line=lambda *_: None,
    )
    plugin.pytest_configure(config)
    return config.args


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_on_another_backend_its_tests_are_all(plugin, monkeypatch, backend):
    monkeypatch.setattr(plugin, "BACKEND", backend)
    found = configured(plugin, "TESTPATHS", "tests")
    seams = [path for path in found if "seams" in path]
    assert found[:2] == ["tests/other_backends", "tests/doctor"]
    assert len(seams) >= 4
    assert all(f"test_{backend}_" in path or "test_keras_" in path for path in seams)
    assert all((ROOT / path).exists() for path in found)
    assert configured(plugin, "ARGS", "tests/docs") == ["tests/docs"]


def test_on_tensorflow_all_tests_run(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "BACKEND", "tensorflow")
    assert configured(plugin, "TESTPATHS", "tests") == ["tests"]


def test_a_run_of_all_tests_ends_with_its_backend(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "BACKEND", "jax")
    lines: list[str] = []
    for source in ("TESTPATHS", "ARGS"):
        config = SimpleNamespace(
            args_source=pytest.Config.ArgsSource[source], getoption=lambda _: "auto"
        )
        plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), config)
    (line,) = lines
    assert line.startswith("These were the tests on Keras's backend jax. For tensorflow or torch")
