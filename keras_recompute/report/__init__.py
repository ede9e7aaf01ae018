"""Reports on memory: records become plain rows, and rows become text, figures, pages and exports.

matplotlib is loaded when something is drawn, not by importing this module.
"""

from __future__ import annotations

from .exports import export_csv, export_trace, export_xprof
from .figures import comparison_figure, liveness_figure
from .files import write_report
from .page import write_page
from .rows import MemoryRow, category_rows, memory_rows, phase_spans, section_spans, summary_rows
from .text import print_liveness, print_memory

__all__ = [
    "MemoryRow",
    "category_rows",
    "comparison_figure",
    "export_csv",
    "export_trace",
    "export_xprof",
    "liveness_figure",
    "memory_rows",
    "phase_spans",
    "print_liveness",
    "print_memory",
    "section_spans",
    "summary_rows",
    "write_page",
    "write_report",
]
