"""What makes the bytes that a run of a training step needs."""

from __future__ import annotations

import re

from ..liveness import Program
from ..liveness.categories import ACTIVATION, CHECKPOINT, GRADIENT, INPUT, OPTIMISER, WEIGHT

COLLECTIVES = "results of collectives"
_OTHER, _GAPS = "other", "gaps between buffers"
_KINDS = {
    WEIGHT: "weights",
    OPTIMISER: "optimizer",
    GRADIENT: "gradients",
    ACTIVATION: "activations",
    CHECKPOINT: "activations",
    INPUT: "batch",
}
HELD = (*dict.fromkeys(_KINDS.values()), COLLECTIVES, _OTHER, _GAPS)
# XLA's instructions that move data between devices, such as "all-gather-start.3".
_COLLECTIVE = re.compile(
    r"(ragged-)?(all-gather|all-reduce|all-to-all|reduce-scatter|collective-(permute|broadcast))"
)


def held_bytes(program: Program) -> dict[str, int]:
    """Return the bytes of each of HELD that are alive at the peak of ``program``.

    Results of collectives are weights and activations gathered from several devices, and sums of
    gradients over them, until another instruction has made something else of them.
    """
    found = dict.fromkeys(HELD, 0)
    for buffer in program.live_at(program.peak_step):
        kind = _KINDS.get(buffer.category, _OTHER)
        found[COLLECTIVES if _COLLECTIVE.match(buffer.name) else kind] += buffer.size_bytes
    # XLA counts a batch that is fed apart from its buffers.
    found[_KINDS[INPUT]] += program.input_feed_bytes
    found[_GAPS] = program.fragmentation_bytes or 0
    return found
