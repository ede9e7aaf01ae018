"""What ``.ci/run`` leaves out: every test keeps a case there."""

from __future__ import annotations

import pytest


class Case:
    """What the hook of ``conftest.py`` asks of a collected test."""

    def __init__(self, nodeid: str, *marks: str):
        self.nodeid, self.marks = nodeid, set(marks)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


@pytest.fixture
def mark(request):
    (plugin,) = [
        p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "mark_exhaustive_cases")
    ]
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


def test_a_test_that_names_its_exhaustive_cases_keeps_the_others(mark):
    cases = [
        Case(f"a.py::test[{n}]", "long", *(["exhaustive"] if n == 1 else [])) for n in range(9)
    ]
    mark(cases)
    assert exhaustive(cases) == ["a.py::test[1]"]
