"""Curves in one line of text."""

from __future__ import annotations

import pytest

from keras_recompute.report.sparkline import ASCII, initials, sparkline, stretches


def test_a_curve_goes_from_zero_to_its_top():
    assert sparkline([0, 1, 7, 3], width=9) == "▁▂█▄"
    assert sparkline([0, 1, 7, 3], width=9, top=14, blocks=ASCII) == "__:."
    assert sparkline([20], width=9, top=7) == "█"  # what is above the top stays in the line


def test_a_peak_of_one_step_is_not_lost():
    values = [0] * 20_000
    values[12_345] = 7
    line = sparkline(values, width=80)
    assert len(line) == 80
    assert line.index("█") == 12_345 * 80 // 20_000
    assert line.count("█") == 1


@pytest.mark.parametrize(("values", "width"), [([], 10), ([1, 2], 0), ([1, 2], -3)])
def test_nothing_is_drawn_of_nothing(values, width):
    assert sparkline(values, width=width) == ""
    assert initials([str(v) for v in values], width=width) == ""


def test_zeros_are_a_flat_line():
    assert sparkline([0, 0], width=5) == "▁▁"


@pytest.mark.parametrize(
    ("count", "width"), [(1, 1), (7, 3), (3, 7), (80, 80), (81, 80), (20_000, 77)]
)
def test_every_value_is_in_one_stretch(count, width):
    cut = stretches(range(count), width)
    assert [v for stretch in cut for v in stretch] == list(range(count))
    assert len(cut) == min(count, width)
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_a_stretch_is_called_after_most_of_it():
    assert initials(["forward", "forward", "backward", None, None, "update"], width=2) == "f "
    assert initials(["forward", None], width=5, blank=".") == "f."
