"""A record of a made-up program, so that reports need no compiler, and a browser for pages."""

from __future__ import annotations

import pytest
from browser import Browser, chromium

from keras_recompute.liveness import Buffer, Program, Step

MIB = 2**20


@pytest.fixture
def program() -> Program:
    """Eight steps in two sections: a floor of 10 MiB, a feed of 64, a peak of 10 + 40 at step 5."""
    held = (5, 10, 20, 20, 30, 40, 8, 2)
    phases = ("forward", "forward", None, "forward", "recompute", "backward", "backward", "update")
    sections = (
        "section-0",
        "section-0",
        "section-1",
        "section-1",
        "section-1",
        "section-1",
        None,
        None,
    )
    steps = tuple(
        Step(f"step.{n}", h * MIB, None, None, p, s)
        for n, (h, p, s) in enumerate(zip(held, phases, sections))
    )
    buffers = (
        Buffer("net/lstm/kernel", 10 * MIB, 0, 7, "always-live", "weight", layer="net/lstm"),
        Buffer("x", 64 * MIB, 0, 7, "input-feed", "input"),
        Buffer(
            "fusion.1",
            30 * MIB,
            4,
            5,
            "temporary",
            "activation",
            "net/lstm/MatMul",
            "net/lstm",
            "recompute",
            "section-1",
        ),
        Buffer("fusion.2", 10 * MIB, 5, 6, "temporary", "gradient", None, None, "backward", None),
    )
    return Program(
        name="made_up",
        compiled_by="hand",
        steps=steps,
        buffers=buffers,
        program_instructions=1234,
        allocated_temporary_bytes=44 * MIB,
        capacity_bytes=100 * MIB,
        compile_seconds=2.0,
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    for name in ("plotly", "jinja2"):
        pytest.importorskip(name, reason=f"the page needs {name}, which is not installed")
    if chromium() is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
