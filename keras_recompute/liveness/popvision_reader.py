"""Reader of memory reports of the Poplar SDK, and the only module that uses its library ``pva``.

PopVision's figures (attributes of ``pva.openReport(path).compilation``) become:

* *always-live*: the sum over ``tiles`` of ``memory.alwaysLiveBytes``. It exceeds
  ``alwaysLiveVariables`` by code and exchange tables, which become a buffer of their own. Nothing
  says which variable is a weight, so their category is other;
* *steps*: ``livenessProgramSteps``, each with ``notAlwaysLiveMemory.bytes``; the body of a repeat
  appears once;
* *temporaries*: ``notAlwaysLiveMemory.variables`` of consecutive steps, one buffer for each range
  of steps that lists a variable without a gap. What a step holds beyond them is shown as
  unexplained;
* *capacity*: ``target.numTiles`` times ``target.bytesPerTile``.

The peak is always-live plus the largest step, as PopVision draws it. Streamed data is not in these
figures, so there is no input feed. Written to Graphcore's published API and tested with objects of
its shape; not with an SDK.
"""

from __future__ import annotations

import os
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Iterable, Iterator

from ..atomic_files import refuse_pipes_and_devices
from ..errors import ReportError
from .categories import OTHER, buffer_category
from .origins import Names
from .profile_pop import POP_NAME, is_profile_pop, read_profile_pop
from .program import ALWAYS_LIVE, TEMPORARY, Buffer, Program, Step

UNLISTED = "always live, in no variable of the report"


def read_popvision(source: Any, *, name: str | None = None) -> Program:
    """Return the record of a report of the Poplar SDK, or of a ``profile.pop`` of this package.

    The SDK's own files are opened with its ``pva``, which must then be installed.

    Args:
        source: The path of a ``profile.pop`` or of its folder, or the result of ``pva.openReport``.
        name: The name of the program.

    Raises:
        ReportError: It cannot be read.

    Examples:
        >>> program = kr.liveness.profile(tf.sin, tf.TensorSpec((8,)))
        >>> kr.liveness.write_profile_pop(program, "report/profile.pop")
        >>> kr.liveness.read_popvision("report").compiled_by
        'XLA of tensorflow ...'
    """
    if not isinstance(source, (str, os.PathLike)):
        return _read(source, name or "PopVision report")
    path = Path(source, POP_NAME) if os.path.isdir(source) else Path(source)
    if is_profile_pop(path):
        return read_profile_pop(path).program
    try:
        refuse_pipes_and_devices(path)  # pva would open it
        os.stat(path)
    except OSError as error:
        raise ReportError(
            f"no profile could be read from {str(path)!r}: {error.strerror}"
        ) from error
    return _read(_opened(path), name or path.resolve().parent.name)


def _opened(path: Path) -> Any:
    try:
        pva = import_module("pva")
    except ImportError as error:
        raise ReportError(
            f"{str(path)!r} was not written by keras-recompute. The Poplar SDK's pva may read it, "
            "and is not installed"
        ) from error
    try:
        return pva.openReport(str(path))
    except Exception as error:  # pva documents no error classes
        raise ReportError(
            f"{str(path)!r} could not be read by pva: {type(error).__name__}: {error}"
        ) from error


def _read(report: Any, name: str) -> Program:
    try:
        compilation = report.compilation
        program_steps = list(compilation.livenessProgramSteps)
        names = Names()
        steps = tuple(_step(step, names) for step in program_steps)
        always_live = sum(int(tile.memory.alwaysLiveBytes) for tile in compilation.tiles)
        listed = list(map(_name_and_size, compilation.alwaysLiveVariables))
        temporaries = list(_stretches(map(_variables, program_steps), names))
        capacity = int(compilation.target.numTiles) * int(compilation.target.bytesPerTile)
        version = str(report.poplarVersion.string)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ReportError(
            "this is not a report that pva opened, or it has no liveness: "
            f"{type(error).__name__}: {error}"
        ) from error
    last = max(len(steps) - 1, 0)
    return Program(
        name=name,
        compiled_by=f"Poplar {version}",
        steps=steps,
        buffers=(*_always_live(listed, always_live, last), *temporaries),
        capacity_bytes=capacity,
        compiler_totals={"always_live_variables_bytes": sum(size for _, size in listed)},
    )


def _step(step: Any, names: Names) -> Step:
    program, held = step.program, int(step.notAlwaysLiveMemory.bytes)
    op_name, kind = str(program.name), str(getattr(program.type, "name", program.type))
    return Step(f"{op_name} ({kind})", held, op_name, names.layer(op_name), _phase(op_name, names))


def _phase(op_name: str, names: Names) -> str | None:
    """Return the phase that a name states; None for a name that states none."""
    return names.origin(op_name).phase if names.is_marked(op_name) else None


def _name_and_size(variable: Any) -> tuple[str, int]:
    return str(variable.name), int(variable.size)


def _variables(step: Any) -> Counter[tuple[str, int]]:
    return Counter(map(_name_and_size, step.notAlwaysLiveMemory.variables))


def _stretches(steps: Iterable[Counter[tuple[str, int]]], names: Names) -> Iterator[Buffer]:
    """Yield a buffer for every range of steps that lists a variable without a gap.

    Several variables of one name and size are told apart by their number.
    """
    held: dict[tuple[str, int], list[int]] = {}  # the steps at which those listed just now appeared
    number = -1
    for number, listed in enumerate(steps):
        for key in [*held]:
            while len(held[key]) > listed[key]:
                # Which of several equal variables ended is unknown; the last one that began is
                # taken.
                yield _temporary(key, held[key].pop(), number - 1, names)
            if not held[key]:
                del held[key]
        for key, count in listed.items():
            starts = held.setdefault(key, [])
            starts.extend([number] * (count - len(starts)))
    for key, starts in held.items():
        for first in starts:
            yield _temporary(key, first, number, names)


def _temporary(variable: tuple[str, int], first: int, last: int, names: Names) -> Buffer:
    name, size = variable
    phase = _phase(name, names)
    category = buffer_category(name, phase)
    return Buffer(name, size, first, last, TEMPORARY, category, name, names.layer(name), phase)


def _always_live(listed: list[tuple[str, int]], total: int, last: int) -> Iterator[Buffer]:
    """Yield always-live buffers of ``total`` bytes together.

    If more is listed than there is, the list is not used.
    """
    rest = total - sum(size for _, size in listed)
    kept = listed if rest >= 0 else []
    for name, size in kept:
        yield Buffer(name, size, 0, last, ALWAYS_LIVE, OTHER)
    unlisted = rest if rest >= 0 else total
    if unlisted:
        yield Buffer(UNLISTED, unlisted, 0, last, ALWAYS_LIVE, OTHER)
