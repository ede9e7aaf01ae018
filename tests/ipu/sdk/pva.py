"""A double of PopVision's library, for the profiles that the double of the SDK wrote."""

from pathlib import Path
from types import SimpleNamespace as Some

from sdk_calls import record

TILES, BYTES_PER_TILE = 1472, 624 * 1024


def _variable(name, size):
    return Some(name=name, size=size)


def _step(name, held, variables):
    program = Some(name=name, type=Some(name="OnTileExecute"))
    return Some(program=program, notAlwaysLiveMemory=Some(bytes=held, variables=variables))


def openReport(path):
    record("openReport", name=Path(path).name)
    scale = {"small": 1, "training": 1000}[Path(path).read_text()]
    kept, passing = (
        _variable("lstm/kept", 700 * scale),
        _variable("gradients/lstm/passing", 200 * scale),
    )
    compilation = Some(
        tiles=[Some(memory=Some(alwaysLiveBytes=2 * scale)) for _ in range(TILES)],
        alwaysLiveVariables=[_variable("lstm/kernel", 1000 * scale)],
        livenessProgramSteps=[
            _step("lstm/forward", 700 * scale, [kept]),
            _step("gradients/lstm/backward", 950 * scale, [kept, passing]),
            _step("sgd", 100 * scale, []),
        ],
        target=Some(
            numTiles=TILES,
            numIPUs=1,
            tilesPerIpu=TILES,
            bytesPerTile=BYTES_PER_TILE,
            bytesPerIPU=TILES * BYTES_PER_TILE,
        ),
    )
    return Some(compilation=compilation, poplarVersion=Some(string="3.4.0 (double)"))
