"""``pva``: PopVision's analysis library, for the reports of this stand-in.

Loads no TensorFlow. Source: Graphcore, PopVision.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from ...liveness.program import ALWAYS_LIVE, RESULT, TEMPORARY, Buffer
from .folder import read_folder
from .tile_estimate import NOTE, TileEstimate, even_shares

__all__ = ["ProgramType", "Report", "openReport"]


def openReport(path: str | os.PathLike[str]) -> Report:
    """Return the report at ``path``, a ``profile.pop`` or its folder.

    Raises ReportError, a ValueError, for anything else.
    """
    return Report(*read_folder(path))


class ProgramType(enum.Enum):
    """The kind of a program step, where XLA's instructions have a counterpart."""

    OnTileExecute = "OnTileExecute"
    Repeat = "Repeat"
    Switch = "Switch"
    Call = "Call"


_TYPES = {"while": ProgramType.Repeat, "conditional": ProgramType.Switch, "call": ProgramType.Call}


class Report:
    """A report: ``compilation``, ``execution`` and ``poplarVersion``.

    ``note`` says how the figures by tile are derived.
    """

    def __init__(self, estimate: TileEstimate, runs: Sequence[dict[str, Any]]) -> None:
        self.note = NOTE
        self.compilation = Compilation(estimate)
        self.execution = SimpleNamespace(runs=[SimpleNamespace(**run) for run in runs])
        compiled_by = estimate.profile.program.compiled_by
        self.poplarVersion = SimpleNamespace(
            string=f"none: compiled by {compiled_by}, reported by keras_recompute.ipu"
        )


class Compilation:
    """The compiled program: its tiles, its steps, and the memory that they hold."""

    def __init__(self, estimate: TileEstimate) -> None:
        self._estimate, self._program = estimate, estimate.profile.program
        device = estimate.profile.target
        self.target = SimpleNamespace(
            numTiles=device.tiles,
            numIPUs=device.ipus,
            tilesPerIpu=device.tiles_per_ipu,
            bytesPerIPU=device.tiles_per_ipu * device.bytes_per_tile,
            bytesPerTile=device.bytes_per_tile,
            numReplicas=device.replicas,
        )
        self.tiles = list(map(self._tile, range(device.tiles)))
        self.ipus = []
        for first in range(0, device.tiles, device.tiles_per_ipu):
            tiles = self.tiles[first : first + device.tiles_per_ipu]
            self.ipus.append(SimpleNamespace(tiles=tiles))
        self.livenessProgramSteps = []
        self.programs = []
        compute_sets = 0
        for number in range(len(self._program.steps)):
            step = LivenessStep(estimate, number)
            self.livenessProgramSteps.append(step)
            self.programs.append(step.program)
            compute_sets += step.program.type is ProgramType.OnTileExecute
        self.graph = SimpleNamespace(numComputeSets=compute_sets)
        always_live = [b for b in self._program.buffers if b.lifetime == ALWAYS_LIVE]
        self.alwaysLiveVariables = list(map(_variable, always_live))

    def _tile(self, number: int) -> SimpleNamespace:
        """Return the memory of one tile."""
        always = self._estimate.on_tile(number, self._estimate.always_live_bytes)
        most = self._estimate.on_tile(number, self._peaks)
        gaps = self._estimate.on_tile(number, self._gaps)
        total = SimpleNamespace(excludingGaps=always + most, includingGaps=always + most + gaps)
        return SimpleNamespace(
            memory=SimpleNamespace(alwaysLiveBytes=always, notAlwaysLiveBytes=most, total=total)
        )

    @cached_property
    def _peaks(self) -> list[int]:
        """The largest not-always-live bytes of each IPU."""
        return list(map(max, self._estimate.not_always_live_bytes))

    @cached_property
    def _gaps(self) -> list[int]:
        """Each IPU's share of the bytes lost to fragmentation."""
        return even_shares(max(self._program.fragmentation_bytes or 0, 0), self._estimate.ipus)


class LivenessStep:
    """A program step, and the not-always-live memory while it runs."""

    def __init__(self, estimate: TileEstimate, number: int) -> None:
        self._estimate, self._number = estimate, number
        step = estimate.profile.program.steps[number]
        kind = _TYPES.get(
            step.instruction.partition(".")[0].partition("-")[0], ProgramType.OnTileExecute
        )
        self.program = SimpleNamespace(name=step.op_name or step.instruction, type=kind)
        self.notAlwaysLiveMemory = Memory(estimate, number, step.not_always_live_bytes)

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> SimpleNamespace:
        """Return the bytes on one IPU.

        Raises IndexError for an unknown IPU.
        """
        return SimpleNamespace(bytes=self._by_ipu[_index(ipu, self._estimate.ipus, "IPU")])

    def notAlwaysLiveMemoryForTile(self, tile: int) -> SimpleNamespace:
        """Return the bytes on one tile, numbered over all IPUs.

        Raises IndexError for an unknown tile.
        """
        number = _index(tile, self._estimate.profile.target.tiles, "tile")
        return SimpleNamespace(bytes=self._estimate.on_tile(number, self._by_ipu))

    @cached_property
    def _by_ipu(self) -> list[int]:
        """The not-always-live bytes of each IPU at this step."""
        return [held[self._number] for held in self._estimate.not_always_live_bytes]


class Memory:
    """A number of bytes, and the variables that they hold; ``variables`` is computed on access."""

    def __init__(self, estimate: TileEstimate, step: int, held: int) -> None:
        self._estimate, self._step = estimate, step
        self.bytes = held

    @property
    def variables(self) -> list[SimpleNamespace]:
        """Name and size of each live variable, largest first."""
        held = sorted(
            self._held(), key=lambda buffer: (-buffer.size_bytes, buffer.first_step, buffer.name)
        )
        return list(map(_variable, held))

    def _held(self) -> Iterator[Any]:
        """Yield the buffers that are live at the step and not always live."""
        for buffer in self._estimate.profile.program.buffers:
            if buffer.lifetime in (TEMPORARY, RESULT) and buffer.is_live_at(self._step):
                yield buffer


def _variable(buffer: Buffer) -> SimpleNamespace:
    return SimpleNamespace(name=buffer.name, size=buffer.size_bytes)


def _index(number: int, count: int, what: str) -> int:
    """Return ``number``; raise IndexError unless it is below ``count``."""
    # Python would count a negative number from the end.
    if not 0 <= number < count:
        raise IndexError(f"there is no {what} {number}: give a number from 0 to {count - 1}")
    return number
