"""Loops over equal sections, forward and backward, and the stores of their slices."""

from .nested_loops import nested_scan
from .scan_roles import (
    Carry,
    Constant,
    FinalOutput,
    Request,
    Role,
    Scanned,
    StackedOutput,
    section_spec,
)
from .section_scan import can_scan, scan_sections
from .slice_store import (
    Dimension,
    SliceStore,
    dimensions,
    empty_all,
    get_all,
    pad_into,
    put_all,
    whole_all,
)

__all__ = [
    "Carry",
    "Constant",
    "Dimension",
    "FinalOutput",
    "Request",
    "Role",
    "Scanned",
    "SliceStore",
    "StackedOutput",
    "can_scan",
    "dimensions",
    "empty_all",
    "get_all",
    "nested_scan",
    "pad_into",
    "put_all",
    "scan_sections",
    "section_spec",
    "whole_all",
]
