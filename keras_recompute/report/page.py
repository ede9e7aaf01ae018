"""The report as one web page that works offline: chart, buffers and comparison.

The page holds the records (the columns of ``liveness.json``) and plotly.js, and computes its views
from them, so that a step of fifty thousand buffers is looked up and not written out twenty thousand
times. Its sources are in the folder ``page``. jinja2 fills the template and escapes every name.
Both libraries are loaded when a page is written, not by importing this module.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Sequence

from ..atomic_files import atomic_write
from ..errors import InvalidArgumentError
from ..liveness import Program
from .diff import GROUPINGS
from .optional_imports import require
from .rows import printable, summary_rows

PAGE_NAME = "liveness.html"
REPORTS_AT_MOST = 2
SHORTCUTS = (
    (("\u2190", "\u2192"), "pin the step before, the step after; with Shift further"),
    (("Home", "End"), "pin the first step, the last step"),
    (("p",), "pin the peak"),
    (("+", "-", "0"), "zoom in, zoom out, all steps; or drag over the chart"),
    (("d",), "compare from this step, end the comparison; or Shift and click"),
    (("s",), "stack by the next grouping"),
    (("a",), "list all buffers, or those of the step"),
    (("x",), "put the other report in front"),
    (("/",), "filter the buffers"),
    (("t",), "all steps as a table"),
    (("Esc",), "clear filter, buffer and comparison"),
    (("?",), "show these keys"),
)
_SOURCE = Path(__file__).parent / "page"
# Characters that could end the script element that holds the data, or a line of it. JSON may
# escape any of them.
_NOT_IN_SCRIPT = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def write_page(
    programs: Sequence[tuple[str, Program]],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
) -> Path:
    """Write a page about one labelled program, or two on one scale, to ``path``; return the path.

    Raises:
        InvalidArgumentError: Another number of programs.
        ReportError: ``path`` cannot be written, or a library is missing.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> kr.report.write_page([("product", program)], "memory.html").name
        'memory.html'
    """
    if not 1 <= len(programs) <= REPORTS_AT_MOST:
        raise InvalidArgumentError(
            f"a page shows one program or {REPORTS_AT_MOST}, not {len(programs)}"
        )
    title = printable(title or " and ".join(label for label, _ in programs))
    with atomic_write(path) as temporary:
        temporary.write_text(_page(programs, title), encoding="utf-8")
    return Path(path)


def page_data(programs: Sequence[tuple[str, Program]]) -> str:
    """Return the records as JSON that is safe in an HTML element, whatever names they hold."""
    entries = []
    for label, program in programs:
        shown = json.dumps(printable(label))
        entries.append(f'{{"label":{shown},"document":{program.to_json()}}}')
    text = f"[{','.join(entries)}]"
    # Escapes keep the JSON valid, as HTML entities would not.
    for character, escape in _NOT_IN_SCRIPT.items():
        text = text.replace(character, escape)
    return text


def _page(programs: Sequence[tuple[str, Program]], title: str) -> str:
    jinja2 = require("jinja2")
    markup = require("markupsafe").Markup
    plotly = require("plotly.offline")
    # A misspelt name in the template is an error, and names from reports are escaped.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_SOURCE), autoescape=True, undefined=jinja2.StrictUndefined
    )

    def source(file: str) -> Any:
        return markup((_SOURCE / file).read_text(encoding="utf-8"))

    reports = []
    for label, program in programs:
        reports.append({"label": printable(label), "summary": summary_rows(program)})
    return environment.get_template("page.html").render(
        title=title,
        reports=reports,
        groupings=GROUPINGS,
        shortcuts=SHORTCUTS,
        data=markup(page_data(programs)),
        plotly=markup(plotly.get_plotlyjs()),
        plotly_version=plotly.get_plotlyjs_version(),
        style=source("page.css"),
        records=source("records.js"),
        chart=source("chart.js"),
        view=source("view.js"),
        controls=source("controls.js"),
    )
