"""Finds repeated calls in a section, such as the blocks of a deep model, so that a loop runs them.

Such a loop recomputes nothing more than the calls without it. What the gradient reads is stored for
each iteration.
"""

from __future__ import annotations

from typing import Any

from .call_graph import Call, Graph
from .fingerprint import Fingerprints, Level
from .isomorphic_layers import structural_fingerprint
from .repetitions import repeated_groups
from .section_loops import SectionLoop, find_loops
from .sections import Section, sections_of_groups


def inner_loops(
    graph: Graph, fingerprints: Fingerprints | None = None
) -> tuple[Section | SectionLoop, ...]:
    """Return the calls of ``graph`` with isomorphic blocks that repeat themselves as loops.

    Empty where there are none. ``fingerprints`` may have known ones.
    """
    known = Fingerprints() if fingerprints is None else fingerprints

    def kind_of(call: Call) -> Any:
        return structural_fingerprint(call.operation, known).key

    blocks = sections_of_groups(graph, repeated_groups(graph.calls, kind_of))
    level = Level.SAME_STRUCTURE
    steps = tuple(find_loops(blocks, graph, level=level, fingerprints=known))
    return steps if any(isinstance(step, SectionLoop) for step in steps) else ()
