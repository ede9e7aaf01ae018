"""The best sections of an uneven chain within a budget, if no step runs forward more than twice.

A section can use the memory that earlier stored states leave. Only the last section is not
replayed. So it should begin as early as possible, and each cut should be reached with as few stored
bytes as possible. With S(0) = 0,

    S(i) = min over h < i of S(h) + state_bytes[h], where steps h to i - 1 fit in budget - S(h).

With ``weight_gradient_bytes``, as in a compiled program, two things stay until a section has run
backward: its input, beside its activations, and the gradients of its weights.

Exact and optimal among plans of sections that are each kept whole. For equal steps it is the
optimum of all plans wherever it finds one: where the budget forces no step to run three times.
"""

from __future__ import annotations

from collections.abc import Sequence

from .budget import bisect_smallest
from .chain import Chain


def single_replay_sections(
    chain: Chain, *, room_bytes: int, weight_gradient_bytes: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Return the first steps of the sections that replay the fewest seconds; None if none fit.

    ``room_bytes`` is the budget without the chain's fixed bytes.
    """
    steps = len(chain)
    keeps_input = weight_gradient_bytes is not None
    gradient_bytes = weight_gradient_bytes or (0,) * steps
    stored: dict[int, int] = {0: 0}
    came_from: dict[int, int] = {}
    for begin in range(steps):
        if begin not in stored:
            continue
        advancing = with_state = stored[begin] + chain.state_bytes[begin]
        kept = keeping = with_state if keeps_input else stored[begin]
        for step in range(begin, steps):
            kept += chain.activation_bytes[step]
            # Steps run backward from the last: this gradient is there when the earlier ones run.
            keeping = max(keeping, kept + chain.working_bytes[step]) + gradient_bytes[step]
            advancing = max(advancing, with_state + chain.working_bytes[step])
            # A longer section needs more, so no later end fits either.
            if keeping > room_bytes:
                break
            if step + 1 == steps:
                sections = [begin]
                while sections[-1]:
                    sections.append(came_from[sections[-1]])
                return tuple(reversed(sections))
            # Only the bytes matter for reaching a cut: all but the last section are replayed in any
            # case.
            if advancing <= room_bytes and with_state < stored.get(step + 1, with_state + 1):
                stored[step + 1] = with_state
                came_from[step + 1] = begin
    return None


def sections_peak_bytes(
    chain: Chain, sections: tuple[int, ...], weight_gradient_bytes: Sequence[int]
) -> int:
    """Return the peak of a compiled step with these ``sections``, fixed bytes included."""
    stored = peak = 0
    for begin, end in zip(sections, [*sections[1:], len(chain)]):
        stored += chain.state_bytes[begin]
        kept = keeping = stored
        for step in range(begin, end):
            kept += chain.activation_bytes[step]
            working = chain.working_bytes[step]
            keeping = max(keeping, kept + working) + weight_gradient_bytes[step]
            peak = max(peak, stored + working)
        peak = max(peak, keeping)
    return chain.fixed_bytes + peak


def replay_seconds(chain: Chain, sections: tuple[int, ...]) -> float:
    """Return the seconds of replaying all but the last of ``sections``."""
    return sum(chain.forward_seconds[: sections[-1]])


def smallest_room_bytes(
    chain: Chain,
    *,
    seconds: float,
    room_bytes: int,
    weight_gradient_bytes: Sequence[int] | None = None,
) -> int:
    """Return the smallest room in which sections replay at most ``seconds``.

    That is ``room_bytes`` itself if no smaller one does.
    """

    def suffices(room: int) -> bool:
        sections = single_replay_sections(
            chain, room_bytes=room, weight_gradient_bytes=weight_gradient_bytes
        )
        return sections is not None and replay_seconds(chain, sections) <= seconds

    return bisect_smallest(room_bytes, suffices)
