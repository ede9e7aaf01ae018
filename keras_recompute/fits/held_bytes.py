"""What makes the bytes that a run of a training step needs."""

from __future__ import annotations

from ..liveness import Program
from ..liveness.categories import ACTIVATION, CHECKPOINT, GRADIENT, INPUT, OPTIMISER, WEIGHT
from ..report import category_rows

_OTHER, _GAPS = "other", "gaps between buffers"
_KINDS = {
    WEIGHT: "weights",
    OPTIMISER: "optimizer",
    GRADIENT: "gradients",
    ACTIVATION: "activations",
    CHECKPOINT: "activations",
    INPUT: "batch",
}
HELD = (*dict.fromkeys(_KINDS.values()), _OTHER, _GAPS)


def held_bytes(program: Program) -> dict[str, int]:
    """Return the bytes of each of HELD that are alive at the peak of ``program``."""
    found = dict.fromkeys(HELD, 0)
    for category, count in category_rows(program):
        found[_KINDS.get(category, _OTHER)] += count
    # XLA counts a batch that is fed apart from its buffers.
    found[_KINDS[INPUT]] += program.input_feed_bytes
    found[_GAPS] = program.fragmentation_bytes or 0
    return found
