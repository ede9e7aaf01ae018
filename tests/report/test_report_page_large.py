"""The page of twenty thousand steps and fifty thousand buffers: it opens, and its figures are those
of the record.
"""

from __future__ import annotations

import pytest
from large import large_program

from keras_recompute.report import page, write_page

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def large(browser, tmp_path_factory):
    """The browser with twenty thousand steps and fifty thousand buffers."""
    path = write_page([("large", large_program())], tmp_path_factory.mktemp("large") / "large.html")
    browser.messages.clear()
    browser.open(path)
    return browser


def test_a_large_report_opens(large):
    assert int(large.run("document.documentElement.dataset.ready")) > 0
    assert large.messages == []


def test_a_large_report_draws_no_more_points_than_a_screen_shows(large):
    browser = large
    assert browser.run("Math.max(...$('plot').data.map((trace) => trace.x.length))") < 2100


def test_the_page_has_the_figures_of_the_record(large):
    browser = large
    program = large_program()
    figures = [
        program.peak_bytes,
        program.peak_step,
        program.always_live_bytes,
        program.program_steps,
    ]
    assert (
        browser.run("[report().peak, report().peakStep, report().floor, report().steps]") == figures
    )
    assert (
        browser.run(
            "Math.max(...$('plot').data.filter((t) => !t.stackgroup && !t.yaxis).flatMap((t) => "
            "t.y))"
        )
        <= figures[0]
    )
    # a drawn point for the peak, though two of three steps have none
    browser.run("go({ from: 0, to: 20000, by: 'category' })")
    browser.settle()
    drawn = browser.run("sampled(report().total, 0, 20000, BINS)")
    assert program.peak_step in drawn
    assert len(drawn) < 2 * 900 + 3


@pytest.mark.parametrize("by", page.GROUPINGS)
def test_the_stack_adds_up_to_the_total_at_every_step(large, by):
    browser = large
    wrong = (
        "report().total.filter((held, step) => report().groups(%r).reduce((sum, g) => sum + "
        "g.held[step], 0) !== held).length"
    )
    assert browser.run(wrong % by) == 0
    assert 1 <= browser.run(f"report().groups({by!r}).length") <= 9
    assert (
        browser.run(f"report().groups({by!r}).some((group) => group.name === 'unexplained')")
        is False
    )
