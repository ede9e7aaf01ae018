"""Objects of the shape of ``pva``'s, made to Graphcore's published API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Sequence

TILES, BYTES_PER_TILE = 4, 1000


def variables(sizes: Sequence[tuple[str, int]]) -> list[SimpleNamespace]:
    return [SimpleNamespace(name=name, size=size) for name, size in sizes]


def step(name: str, held: int, listed: Sequence[tuple[str, int]] = ()) -> SimpleNamespace:
    """Return a program step that holds ``held`` bytes, ``listed`` of them as variables."""
    memory = SimpleNamespace(bytes=held, variables=variables(listed))
    return SimpleNamespace(
        program=SimpleNamespace(name=name, type=SimpleNamespace(name="OnTileExecute")),
        notAlwaysLiveMemory=memory,
    )


def report(
    steps: Sequence[SimpleNamespace],
    *,
    always: Sequence[tuple[str, int]] = (),
    per_tile: Sequence[int] = (5, 5, 6, 4),
):
    """Return what ``pva.openReport`` would, for four tiles that always hold ``per_tile`` bytes."""
    compilation = SimpleNamespace(
        tiles=[SimpleNamespace(memory=SimpleNamespace(alwaysLiveBytes=held)) for held in per_tile],
        livenessProgramSteps=list(steps),
        alwaysLiveVariables=variables(always),
        target=SimpleNamespace(numTiles=TILES, bytesPerTile=BYTES_PER_TILE),
    )
    return SimpleNamespace(compilation=compilation, poplarVersion=SimpleNamespace(string="3.4.0"))
