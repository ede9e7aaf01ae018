"""What a recurrent layer keeps that is cut along time, estimated from what it keeps uncut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras

from ...layers.time_loops import LoopOptions, is_cut, sqrt_sections
from ...seams.keras.time_loops import replace_time_loops
from .cost_record import LayerCost


@contextlib.contextmanager
def noted_loops() -> Iterator[list[int]]:
    """Leave Keras's recurrent layers uncut; gives the number of steps of each loop to be cut."""
    steps: list[int] = []

    def run(plain: Any, layer: Any, step: Any, inputs: Any, *states: Any, **options: Any) -> Any:
        if is_cut(layer, inputs, LoopOptions(**options)):
            steps.append(inputs.shape[1])
        return plain(step, inputs, *states, **options)

    with replace_time_loops(run):
        yield steps


def with_time_cut(cost: LayerCost, operation: Any, steps: list[int]) -> LayerCost:
    """Return the ``cost`` of ``operation``, measured uncut, with what it keeps cut along time.

    ``steps`` has the number of steps of each of its loops. Cut, a loop keeps the steps of one
    section and one state for each section, which takes no more than a step does.
    """
    # Of a layer with others inside it is not known what its loops keep.
    if not steps or not isinstance(operation, (keras.layers.RNN, keras.layers.Bidirectional)):
        return cost
    sections = sqrt_sections(max(steps))
    there = sections[0][1] + sum(count for count, _ in sections)
    share = min(1.0, there / max(steps))
    kept = {key: int(size * share) for key, size in cost.kept.items()}
    return replace(cost, kept_in_section=kept, is_cut=True)
