"""Figures by IPU and tile add up to the program's; pva has the attributes scripts use.

Source: Graphcore, PopVision.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from keras_recompute.errors import ReportError
from keras_recompute.ipu.reports import pva
from keras_recompute.ipu.reports.cbor import encode
from keras_recompute.ipu.reports.folder import new_folder, write_details
from keras_recompute.ipu.reports.tile_estimate import NOTE, Placement, TileEstimate, even_shares
from keras_recompute.liveness import (
    Buffer,
    IpuTarget,
    Profile,
    Program,
    Step,
    read_popvision,
    write_profile_pop,
)

DEVICE = IpuTarget(ipus=2, tiles_per_ipu=4, bytes_per_tile=100)


def buffer(
    name: str, size: int, first: int, last: int, lifetime: str, layer: str | None = None
) -> Buffer:
    return Buffer(name, size, first, last, lifetime, "other", layer=layer)


PROGRAM = Program(
    name="p",
    compiled_by="xla",
    steps=(
        Step("fusion.1", 40, op_name="a/mul"),
        Step("while", 130),
        Step("conditional.2", 11),
        Step("call.3", 0),
    ),
    buffers=(
        buffer("w", 50, 0, 3, "always-live", "first"),
        buffer("v", 23, 0, 3, "always-live"),
        buffer("x", 999, 0, 3, "input-feed"),
        buffer("h", 40, 0, 1, "temporary", "first"),
        buffer("g", 80, 1, 1, "temporary", "second"),
        buffer("y", 10, 1, 2, "result"),
    ),
    allocated_temporary_bytes=139,
)
# By hand: always live 50 of the first layer, and 23 shared as 12 + 11. Step 1 holds 40 on IPU 0, 80
# on IPU 1, and 10 shared as 5 + 5. Step 2 lists 10 of 11 bytes: all of it belongs to no layer, 6 +
# 5.
ALWAYS = (62, 11)
HELD = ((40, 45, 6, 0), (0, 85, 5, 0))
SPREAD = TileEstimate(Profile(PROGRAM, DEVICE), Placement({"first": 0, "second": 1}, io_tiles=1))


def test_bytes_of_ipus():
    assert SPREAD.always_live_bytes == ALWAYS
    assert SPREAD.not_always_live_bytes == HELD
    assert (SPREAD.peak_bytes(0), SPREAD.peak_bytes(1)) == (62 + 45, 11 + 85)
    assert SPREAD.capacity_bytes == 3 * 100


def test_bytes_of_tiles():
    """62 over three tiles is 21 + 21 + 20; the fourth is for input and output, and empty."""
    assert [SPREAD.on_tile(tile, ALWAYS) for tile in range(8)] == [21, 21, 20, 0, 4, 4, 3, 0]


@pytest.mark.parametrize(
    ("total", "count", "shares"), [(7, 3, [3, 2, 2]), (0, 2, [0, 0]), (2, 4, [1, 1, 0, 0])]
)
def test_even_shares(total, count, shares):
    assert even_shares(total, count) == shares


def test_more_storage_than_the_step_counts_is_scaled():
    """Storage that shares its place with other storage is listed twice: 60 + 40 listed, 50 held."""
    program = Program(
        "p",
        "xla",
        (Step("a", 51),),
        (buffer("a", 60, 0, 0, "temporary", "first"), buffer("b", 40, 0, 0, "temporary", "second")),
    )
    estimate = TileEstimate(Profile(program, DEVICE), Placement({"first": 0, "second": 1}))
    assert estimate.not_always_live_bytes == ((31,), (20,))


@pytest.mark.parametrize(
    ("layer", "ipu"),
    [
        ("first", 0),
        ("net/first", 0),
        ("second/first", 1),
        ("net/other", None),
        ("firs", None),
        (None, None),
    ],
)
def test_a_layer_inside_others(layer, ipu):
    """A model inside a model is in one stage with all its layers."""
    assert SPREAD.placement.ipu_of(layer) == ipu


def test_an_unknown_ipu_counts_as_none():
    estimate = TileEstimate(Profile(PROGRAM, DEVICE), Placement({"first": 7}))
    assert estimate.always_live_bytes == (37, 36)


@pytest.fixture
def path(tmp_path):
    folder = new_folder(tmp_path)
    write_profile_pop(PROGRAM, folder / "profile.pop", target=DEVICE)
    write_details(folder, SPREAD.placement, [{"name": "run 0", "seconds": 0.5}])
    return folder / "profile.pop"


def test_every_attribute_in_use(path):
    report = pva.openReport(str(path))
    compilation = report.compilation
    tiles = [tile.memory for tile in compilation.tiles]
    assert [memory.alwaysLiveBytes for memory in tiles] == [21, 21, 20, 0, 4, 4, 3, 0]
    assert [memory.notAlwaysLiveBytes for memory in tiles] == [15, 15, 15, 0, 29, 28, 28, 0]
    assert [memory.total.excludingGaps for memory in tiles] == [36, 36, 35, 0, 33, 32, 31, 0]
    # The allocator reserves 9 bytes beyond the peak of 130: 5 + 4, then 2 + 2 + 1 and 2 + 1 + 1.
    assert [memory.total.includingGaps for memory in tiles] == [38, 38, 36, 0, 35, 33, 32, 0]
    steps = compilation.livenessProgramSteps
    assert [step.program.name for step in steps] == ["a/mul", "while", "conditional.2", "call.3"]
    assert [step.program.type.name for step in steps] == [
        "OnTileExecute",
        "Repeat",
        "Switch",
        "Call",
    ]
    assert [step.notAlwaysLiveMemory.bytes for step in steps] == [40, 130, 11, 0]
    assert [(v.name, v.size) for v in steps[1].notAlwaysLiveMemory.variables] == [
        ("g", 80),
        ("h", 40),
        ("y", 10),
    ]
    assert (
        tuple(tuple(step.notAlwaysLiveMemoryForIpu(k).bytes for step in steps) for k in (0, 1))
        == HELD
    )
    assert [steps[1].notAlwaysLiveMemoryForTile(t).bytes for t in range(8)] == [
        15,
        15,
        15,
        0,
        29,
        28,
        28,
        0,
    ]
    assert [(v.name, v.size) for v in compilation.alwaysLiveVariables] == [("w", 50), ("v", 23)]
    assert [len(ipu.tiles) for ipu in compilation.ipus] == [4, 4]
    assert compilation.ipus[1].tiles[0] is compilation.tiles[4]
    assert vars(compilation.target) == {
        "numTiles": 8,
        "numIPUs": 2,
        "tilesPerIpu": 4,
        "bytesPerIPU": 400,
        "bytesPerTile": 100,
        "numReplicas": 1,
    }
    assert compilation.graph.numComputeSets == 1
    assert [program.name for program in compilation.programs] == [
        step.program.name for step in steps
    ]
    assert [(run.name, run.seconds) for run in report.execution.runs] == [("run 0", 0.5)]
    assert "compiled by xla" in report.poplarVersion.string
    assert "spread evenly over its tiles" in report.note


def test_the_peak_as_scripts_compute_it(path):
    """The always-live bytes over tiles plus the largest step, as in the record and in liveness."""
    report = pva.openReport(path.parent)
    always = sum(tile.memory.alwaysLiveBytes for tile in report.compilation.tiles)
    most = max(step.notAlwaysLiveMemory.bytes for step in report.compilation.livenessProgramSteps)
    assert (always, always + most) == (73, 203) == (PROGRAM.always_live_bytes, PROGRAM.peak_bytes)
    assert read_popvision(path) == PROGRAM
    through_objects = read_popvision(report)
    assert (through_objects.always_live_bytes, through_objects.peak_bytes) == (73, 203)
    assert through_objects.capacity_bytes == 800


def test_one_ipu_without_details(tmp_path):
    write_profile_pop(PROGRAM, tmp_path / "profile.pop")
    compilation = pva.openReport(tmp_path).compilation
    assert (compilation.target.numTiles, compilation.target.bytesPerIPU) == (
        1472,
        897 * 1024 * 1024,
    )
    assert sum(tile.memory.alwaysLiveBytes for tile in compilation.tiles) == 73
    assert compilation.livenessProgramSteps[1].notAlwaysLiveMemoryForIpu(0).bytes == 130


@pytest.mark.parametrize(
    ("name", "number", "count"), [("Ipu", 2, 1), ("Ipu", -1, 1), ("Tile", 8, 7)]
)
def test_what_is_not_there(path, name, number, count):
    step = pva.openReport(path).compilation.livenessProgramSteps[0]
    with pytest.raises(
        IndexError, match=f"there is no .* {number}: give a number from 0 to {count}"
    ):
        getattr(step, f"notAlwaysLiveMemoryFor{name}")(number)


def test_files_that_are_none(tmp_path, path):
    with pytest.raises(ReportError, match="No such file"):
        pva.openReport(tmp_path / "nowhere.pop")
    (tmp_path / "other.pop").write_bytes(b"\x00\x01")
    with pytest.raises(
        ReportError,
        match=r"was not written by keras_recompute\.ipu: open it with the Poplar SDK's own pva",
    ):
        pva.openReport(tmp_path / "other.pop")
    (path.parent / "keras_recompute.json").write_text("{}")
    with pytest.raises(ReportError, match="json' cannot be read: KeyError"):
        pva.openReport(path)


def test_the_note_is_in_the_files(path):
    assert json.loads((path.parent / "keras_recompute.json").read_text())["note"] == NOTE


def test_pva_loads_no_tensorflow():
    code = (
        "import sys, keras_recompute.ipu as i; i.install(); import pva; pva.openReport; "
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # RFC 8949, appendix A
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (-1, "20"),
        (-1000, "3903e7"),
        (False, "f4"),
        (True, "f5"),
        (None, "f6"),
        ("", "60"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ([1, [2, 3], [4, 5]], "8301820203820405"),
        ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    ],
)
def test_cbor(value, expected):
    assert encode(value).hex() == expected


@pytest.mark.parametrize("value", [1.5, b"x", 1 << 64])
def test_what_is_not_written_as_cbor(value):
    with pytest.raises(TypeError, match=r"cannot be written as CBOR|more than 64 bits"):
        encode(value)
