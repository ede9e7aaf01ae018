"""The page: what it carries, as data; and what its readers do with it, in a headless Chromium."""

from __future__ import annotations

import dataclasses

import pytest

from keras_recompute.liveness import Program
from keras_recompute.report import write_page
from keras_recompute.sizes import format_bytes

MIB = 2**20
HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
HOSTILE += '\u2028"&amp;[/b]\x1b[2J'


def needs(*names):
    for name in names:
        pytest.importorskip(name, reason=f"the page needs {name}, which is not installed")


@pytest.fixture
def saved(program) -> Program:
    """The program of the fixture with the temporaries of half the size."""
    steps = tuple(
        dataclasses.replace(s, not_always_live_bytes=s.not_always_live_bytes // 2)
        for s in program.steps
    )
    buffers = tuple(
        dataclasses.replace(b, size_bytes=b.size_bytes // 2) if b.lifetime == "temporary" else b
        for b in program.buffers
    )
    return dataclasses.replace(program, steps=steps, buffers=buffers)


@pytest.fixture
def opened(browser, program, tmp_path):
    """The browser with the page of the small program; at the end nothing may have been said on the
    console.
    """
    browser.messages.clear()
    browser.open(write_page([("small", program)], tmp_path / "one.html"))
    yield browser
    assert browser.messages == []


@pytest.fixture
def both(browser, program, saved, tmp_path):
    """The browser with the page of two programs."""
    browser.messages.clear()
    browser.open(write_page([("plain", program), ("saved", saved)], tmp_path / "two.html"))
    yield browser
    assert browser.messages == []


def place(browser, step: float) -> tuple[float, float]:
    """Return where in the window a step of the chart is."""
    script = (
        "(() => { const box = $('stage').getBoundingClientRect(); return [box.left + "
        "chart.pixel(%s), box.top + 150]; })()"
    )
    return tuple(browser.run(script % step))


def text(browser, name: str) -> str:
    return browser.run(f"$({name!r}).textContent")


def listed(browser) -> list[list[str]]:
    """Return size and description of the buffers in the list."""
    rows = (
        "[...$('buffers').tBodies[0].rows].map((row) => [...row.cells].slice(0, 2).map((cell) => "
        "cell.textContent))"
    )
    return browser.run(rows)


def address(browser) -> str:
    return browser.run("location.hash")


@pytest.mark.long
def test_it_opens_at_the_peak(opened):
    assert text(opened, "step-title") == "Step 5 of 8, the peak"
    assert listed(opened) == [
        ["30.0 MiB", "net/lstm: MatMul"],
        ["10.0 MiB", "net/lstm/kernel"],
        ["10.0 MiB", "fusion.2"],
    ]
    assert text(opened, "sums") == "3 buffers, 50.0 MiB of the 50.0 MiB held"
    assert address(opened) == ""
    # The record's buffers do not add up to its steps: that is shown
    assert "unexplained" in text(opened, "legend")


@pytest.mark.long
def test_hover_tells_the_step_and_what_is_alive(opened):
    opened.move(*place(opened, 4.5))
    tip = opened.wait("!$('tip').hidden && $('tip').textContent")
    assert tip.startswith("40.0 MiB at step 4")
    assert "30.0 MiBnet/lstm: MatMul" in tip
    assert "fusion.2" not in tip
    opened.move(5, 5)
    opened.wait("$('tip').hidden")


@pytest.mark.long
def test_the_tip_stays_in_a_narrow_window(browser, program, tmp_path):
    def width(pixels):
        browser.send(
            "Emulation.setDeviceMetricsOverride",
            width=pixels,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )

    width(600)
    try:
        browser.open(write_page([("small", program)], tmp_path / "one.html"))
        for step in (0.2, 2.4, 4, 7.8):
            browser.move(*place(browser, step))
            browser.wait(f"!$('tip').hidden && $('tip').textContent.includes('step {int(step)}')")
            left, right = browser.run(
                "(() => { const box = $('tip').getBoundingClientRect(); return [box.left, "
                "box.right]; })()"
            )
            assert 0 <= left < right <= 600
    finally:
        width(1400)


@pytest.mark.long
def test_a_pointer_that_leaves_at_once_shows_nothing(opened):
    send = "$('stage').dispatchEvent(new PointerEvent(%r, { clientX: 500, clientY: 300 }))"
    opened.run(send % "pointermove")
    opened.run("$('tip').hidden = true")
    opened.run(";".join(send % kind for kind in ("pointermove", "pointerleave")))
    opened.settle()
    assert opened.run("$('tip').hidden")


@pytest.mark.long
def test_hover_where_only_the_other_report_has_steps(browser, program, saved, tmp_path):
    browser.messages.clear()
    steps = (
        *saved.steps,
        *[dataclasses.replace(s, instruction=f"more.{s.instruction}") for s in saved.steps],
    )
    longer = dataclasses.replace(saved, steps=steps)
    browser.open(write_page([("short", program), ("long", longer)], tmp_path / "uneven.html"))
    browser.move(*place(browser, 13.5))
    tip = browser.wait("!$('tip').hidden && $('tip').textContent")
    assert tip.startswith("A has no step 13")
    assert "B holds 30.0 MiB" in tip
    assert browser.messages == []


@pytest.mark.long
def test_click_pins_a_step(opened):
    opened.click(*place(opened, 6.5))
    assert text(opened, "step-title") == "Step 6 of 8"
    assert [size for size, _ in listed(opened)] == ["10.0 MiB", "10.0 MiB"]
    assert address(opened) == "#step=6"


@pytest.mark.long
def test_the_list_is_filtered_and_sorted(opened):
    opened.run("document.querySelector('[data-sort=what]').click()")
    assert [what for _, what in listed(opened)] == [
        "fusion.2",
        "net/lstm/kernel",
        "net/lstm: MatMul",
    ]
    opened.run("document.querySelector('[data-sort=what]').click()")
    assert [what for _, what in listed(opened)] == [
        "net/lstm: MatMul",
        "net/lstm/kernel",
        "fusion.2",
    ]
    opened.run("go({ sort: 'bytes', down: false })")
    assert [size for size, _ in listed(opened)] == ["10.0 MiB", "10.0 MiB", "30.0 MiB"]
    opened.key("/")
    for letter in "LSTM":
        opened.key(letter)
    assert sorted(what for _, what in listed(opened)) == ["net/lstm/kernel", "net/lstm: MatMul"]
    opened.key("Escape")
    for name, value, count in (
        ("category", "gradient", 1),
        ("layer", "net/lstm", 2),
        ("layer", "(none)", 1),
    ):
        opened.run(
            f"(() => {{ $({name!r}).value = {value!r}; "
            f"$({name!r}).dispatchEvent(new Event('change')); }})()"
        )
        assert len(listed(opened)) == count
        opened.key("Escape")
    assert len(listed(opened)) == 3
    opened.key("a")
    assert len(listed(opened)) == 3  # all buffers but the input feed
    assert text(opened, "sums").endswith("counted each once")


@pytest.mark.long
def test_a_buffer_shows_its_whole_life(opened):
    opened.run("$('buffers').tBodies[0].rows[0].click()")
    assert "step 4 to 5, 2 steps" in text(opened, "buffer-facts")
    assert "31,457,280 bytes" in text(opened, "buffer-facts")
    left, width, at_four, at_six = opened.run(
        "[parseFloat($('lifetime').style.left), parseFloat($('lifetime').style.width), "
        "chart.pixel(4), chart.pixel(6)]"
    )
    assert left == pytest.approx(at_four, abs=1)
    assert left + width == pytest.approx(at_six, abs=1)
    opened.run("$('buffers').tBodies[0].rows[0].click()")
    assert opened.run("$('lifetime').hidden")


@pytest.mark.long
def test_the_difference_of_two_steps(opened):
    opened.click(*place(opened, 3.5))
    opened.click(*place(opened, 6.5), shift=True)
    assert (
        text(opened, "sums")
        == "From step 3 to 6: 1 came, +10.0 MiB; 0 went, 0 B; together +10.0 MiB"
    )
    assert listed(opened) == [["+10.0 MiB", "fusion.2"]]
    opened.key("p")
    assert listed(opened) == [["+30.0 MiB", "net/lstm: MatMul"], ["+10.0 MiB", "fusion.2"]]
    opened.run("$('clear-base').click()")
    assert text(opened, "buffers-title") == "Buffers alive at the step"


@pytest.mark.long
def test_the_keyboard_does_everything(opened):
    for key, step in (
        ("ArrowRight", 6),
        ("ArrowLeft", 5),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("End", 7),
        ("p", 5),
    ):
        opened.key(key)
        assert opened.run("state.step") == step
    opened.key("Home")
    opened.key("d")
    opened.key("ArrowRight", shift=True)
    assert (opened.run("state.base"), opened.run("state.step")) == (0, 2)
    opened.key("Escape")
    assert opened.run("state.base") is None
    opened.key("s")
    assert opened.run("[state.by, $('by').value]") == ["layer", "layer"]
    opened.run("scrollTo(0, document.body.scrollHeight)")
    opened.key("?")
    assert opened.run("!$('help').hidden && $('help').getBoundingClientRect().top >= 0")
    opened.key("t")
    opened.wait("$('steps').tBodies[0].rows.length === 8")
    opened.run("$('steps').tBodies[0].rows[1].focus()")
    opened.key("Enter")
    assert text(opened, "say") == "step 1, 20.0 MiB"


@pytest.mark.long
def test_zoom(opened):
    opened.drag(place(opened, 2), place(opened, 7))
    first, last = opened.run("[state.from, state.to]")
    assert (first, last) == (2, 7)
    assert address(opened) == "#from=2&to=7"
    opened.key("+")
    narrow = opened.run("state.to - state.from")
    assert narrow < 5
    opened.key("End")
    assert opened.run("state.to") == 8  # the pinned step stays in view
    opened.key("0")
    assert opened.run("[state.from, state.to]") == [0, 8]


@pytest.mark.long
def test_a_link_keeps_the_state(browser, program, saved, tmp_path):
    path = write_page([("plain", program), ("saved", saved)], tmp_path / "two.html")
    link = "#report=1&by=phase&step=6&base=3&buffer=2&from=1&to=7&text=fus"
    browser.open(path, link)
    assert address(browser) == link
    assert text(browser, "step-title") == "B: Step 6 of 8"
    assert listed(browser) == [["+5.00 MiB", "fusion.2"]]
    assert text(browser, "buffer-title") == "Buffer fusion.1"
    browser.open(
        path,
        "#report=9&step=-4&by=__proto__&scope=toString&base=x&from=7&to=1&buffer=1e9&sort=constructor",
    )
    assert browser.run("[state.front, state.step, state.by, state.scope, state.base]") == [
        1,
        0,
        "category",
        "step",
        None,
    ]
    browser.run("location.hash = '#step=2'")
    browser.wait("$('step-title').textContent === 'A: Step 2 of 8'")


@pytest.mark.long
def test_two_reports_on_one_scale(both):
    scale = "[$('plot').layout.yaxis.range, $('plot').layout.xaxis.range]"
    before = both.run(scale)
    held = "Math.max(...$('plot').data.filter((trace) => trace.line?.dash === '7px,3px')[0].y)"
    assert both.run(held) == 30 * MIB  # B is the outline
    both.move(*place(both, 5.5))
    assert "B holds 30.0 MiB" in both.wait("!$('tip').hidden && $('tip').textContent")
    both.key("x")
    assert both.run(scale) == before
    assert text(both, "step-title") == "B: Step 5 of 8, the peak"
    assert both.run(held) == 50 * MIB
    assert [size for size, _ in listed(both)] == ["15.0 MiB", "10.0 MiB", "5.00 MiB"]


@pytest.mark.long
def test_light_and_dark(opened):
    colours = []
    for dark in (True, False):
        opened.dark(dark)
        opened.wait(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
        colours.append(opened.run("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    opened.run("$('theme').click()")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == colours[0]


@pytest.mark.long
def test_hostile_names_are_text(browser, program, tmp_path):
    browser.messages.clear()
    steps = tuple(
        dataclasses.replace(s, instruction=HOSTILE, layer=HOSTILE, phase=HOSTILE)
        for s in program.steps
    )
    fields = dict.fromkeys(("name", "category", "op_name", "layer", "section", "source"), HOSTILE)
    buffers = tuple(dataclasses.replace(b, **fields) for b in program.buffers)
    hostile = dataclasses.replace(program, name=HOSTILE, steps=steps, buffers=buffers)
    browser.open(write_page([(HOSTILE, hostile), (HOSTILE, hostile)], tmp_path / "hostile.html"))
    browser.move(*place(browser, 4.5))
    for by in ("category", "layer", "phase", "section", "lifetime"):
        browser.run(f"go({{ by: {by!r}, buffer: 0, base: 1, scope: 'change' }})")
        browser.settle()
    browser.run("$('table').open = true")
    browser.wait("$('steps').tBodies[0].rows.length === 8")
    assert browser.run("window.harmed ?? null") is None
    assert browser.run("document.querySelectorAll('img, script').length") == browser.run(
        "document.querySelectorAll('script').length"
    )
    assert browser.run("document.querySelectorAll('script').length") == 7
    assert HOSTILE in text(browser, "step-facts")
    assert browser.messages == []


def test_everything_but_the_chart_is_there_before_plotly_is_read(browser, program, tmp_path):
    path = write_page([("a", program)], tmp_path / "page.html")
    text_of_page = path.read_text(encoding="utf-8")
    # As far as it was read
    path.write_text(text_of_page[: text_of_page.index("plotly.js v")], encoding="utf-8")
    browser.messages.clear()
    browser.send("Page.navigate", url="about:blank")
    browser.send("Page.navigate", url=path.as_uri())
    browser.wait("document.documentElement?.dataset.shown")
    assert browser.run("!chart.isDrawn && !document.documentElement.dataset.ready")
    assert [size for size, _ in listed(browser)] == ["30.0 MiB", "10.0 MiB", "10.0 MiB"]
    browser.key("ArrowRight")
    assert text(browser, "step-title") == "Step 6 of 8"
    assert "activation" in text(browser, "legend")
    assert browser.messages == []


@pytest.mark.long
def test_the_page_writes_sizes_as_the_tables_do(opened):
    sizes = [
        0,
        1,
        999,
        1000,
        1023,
        1024,
        4096,
        10_234,
        102_348,
        1_023_487,
        1_023_488,
        MIB,
        31 * MIB + 7,
        2**30,
        2**40,
        2**52,
    ]
    assert opened.run(f"{sizes}.map(formatBytes)") == [format_bytes(size) for size in sizes]
