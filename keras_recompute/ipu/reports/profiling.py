"""Reports of the programs that the stand-in compiles.

``run_reported`` wraps every call of a compiled program. If reports are requested, each newly
compiled program gets a folder of its own. The program is compiled a second time for its report.
Source: Graphcore, PopVision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from ...liveness import CompiledProgram, Profile, compile_program, write_profile_pop
from ...liveness.keras_step import compiled_functions, layer_names
from ...liveness.profile_pop import POP_NAME
from ...liveness.tensorflow_functions import compile_trace
from ...seams.tensorflow.concrete_functions import traces
from ...sizes import format_bytes
from ..configuration import config
from ..configuration.current_strategy import current_strategy
from ..configuration.device import FIRST_DEVICE, device_number, target_of
from .auto_report import AutoReport
from .folder import new_folder, write_debug, write_details, write_framework
from .tile_estimate import Placement, TileEstimate

# The keys are weak, so that reported functions can be freed.
_seen: WeakKeyDictionary[Any, dict[Any, _Compiled]] = WeakKeyDictionary()


@dataclass
class _Compiled:
    """A reported program: its folder, if any, and its runs so far."""

    folder: Path | None
    placement: Placement
    runs: list[dict[str, Any]] = field(default_factory=list)

    def ran(self, seconds: float, options: AutoReport) -> None:
        """Record a run, up to the requested number."""
        if self.folder and options.execution and len(self.runs) < options.max_runs:
            self.runs.append({"name": f"run {len(self.runs)}", "seconds": seconds})
            write_details(self.folder, self.placement, self.runs)


def run_reported(
    function: Callable[..., Any],
    *arguments: Any,
    input_feed: Sequence[int | str] = (),
    keywords: Mapping[str, Any] | None = None,
    ipu_of_layer: Mapping[str, int] | None = None,
    model: Any = None,
    replicas: int = 1,
) -> Any:
    """Return ``function(*arguments, **keywords)``, with reports if they are requested.

    ``function`` is a compiled ``tf.function``. ``input_feed`` names the arguments that are streamed
    in, which no figure counts. ``ipu_of_layer`` maps layers to IPUs, and ``model`` is the Keras
    model that they belong to. A program of several ``replicas`` runs them one after the other, and
    is reported as what one of them holds on its IPUs.

    Raises:
        tf.errors.ResourceExhaustedError: If the program must fit the device and does not, after its
            report is written.
        ValueError: For report options that cannot be read.
    """
    options, keywords = AutoReport.in_force(), dict(keywords or {})
    if not options.asks:
        return function(*arguments, **keywords)
    device = _device()
    # An IPU compiles a program again under another configuration, so each has a report.
    given = tf.nest.flatten((arguments, keywords))
    key = (*map(_signature, given), str(config.current()), options, device, replicas)
    known = _seen.setdefault(function, {})
    if key not in known:
        placement = Placement(dict(ipu_of_layer or {}), config.current().io_tiles.num_io_tiles)
        compiled = compile_program(
            function, *arguments, input_feed=list(input_feed), layers_of=model, **keywords
        )
        folder = _report(
            compiled, placement, getattr(model, "name", None), options, device, replicas
        )
        known[key] = _Compiled(folder, placement)
    # The time includes waiting for the results, which is what reading them does.
    begin = time.perf_counter()
    results = function(*arguments, **keywords)
    tf.nest.map_structure(
        lambda leaf: leaf.numpy() if tf.is_tensor(leaf) and hasattr(leaf, "numpy") else leaf,
        results,
    )
    known[key].ran(time.perf_counter() - begin, options)
    return results


def with_reports(function: Callable[..., Any], model: Any) -> Callable[..., Any]:
    """Return ``function``, which Keras made for ``model``, with reports of its programs.

    Keras's function is no program itself, but calls programs. So the reports are written after the
    call that compiled them.
    """

    def run_and_report(*arguments: Any) -> Any:
        results, options = function(*arguments), AutoReport.in_force()
        if options.asks:
            for compiled in compiled_functions(function):
                for concrete in traces(compiled):
                    _report_trace(concrete, model, options)
        return results

    return run_and_report


def _report_trace(concrete: Any, model: Any, options: AutoReport) -> None:
    """Report the program of a traced function once per configuration."""
    known, key = _seen.setdefault(concrete, {}), (str(config.current()), options)
    if key in known:
        return
    compiled = compile_trace(concrete, None, layer_names(model))
    placement = Placement({}, config.current().io_tiles.num_io_tiles)
    folder = _report(compiled, placement, model.name, options, _device()) if compiled else None
    known[key] = _Compiled(folder, placement)


def _device() -> int:
    """Return the device number of the strategy whose scope is entered."""
    return device_number(getattr(current_strategy(), "ipu_device", FIRST_DEVICE), config.devices())


def _signature(leaf: Any) -> str:
    """Return what decides whether an argument needs another program."""
    return f"{leaf.dtype} {leaf.shape}" if hasattr(leaf, "shape") else repr(leaf)


def _report(
    compiled: CompiledProgram,
    placement: Placement,
    model: str | None,
    options: AutoReport,
    device: int,
    replicas: int = 1,
) -> Path | None:
    """Write a program's reports and return their folder, if any.

    Raises ResourceExhaustedError if the program must fit the device and does not.
    """
    settings = config.current()
    target = target_of(settings, device=device, replicas=replicas)
    program = compiled.program(capacity_bytes=target.memory_bytes)
    estimate, folder = TileEstimate(Profile(program, target), placement), None
    if options.graph or options.execution:
        folder = new_folder(options.directory)
        write_profile_pop(program, folder / POP_NAME, target=target)
        write_details(folder, placement, [])
    if folder and options.everything:
        write_debug(folder, program)
        framework = {
            "framework": f"TensorFlow {tf.__version__}, Keras {keras.__version__}",
            "model": model,
            "program": program.name,
            "ipu_of_layer": dict(placement.ipu_of_layer),
            "configuration": settings.to_dict(),
        }
        write_framework(folder, framework)
    if options.must_fit:
        for ipu in range(target.ipus):
            needed = estimate.peak_bytes(ipu)
            if needed > estimate.capacity_bytes:
                raise tf.errors.ResourceExhaustedError(
                    None,
                    None,
                    f"out of memory: the program needs {format_bytes(needed)} on IPU {ipu}, whose "
                    f"{estimate.compute_tiles} tiles have {format_bytes(estimate.capacity_bytes)}. "
                    + (
                        f"Its profile was written to {folder / POP_NAME}"
                        if folder
                        else "Reports were not asked for"
                    ),
                )
    return folder
