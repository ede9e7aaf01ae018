"""Compilation for a device that is not here, in a separate process, with a cache of the results.

The compilers come with JAX's packages (``pip install "keras-recompute[devices]"``). They may be in
this environment or in that of another interpreter, named by ``KERAS_RECOMPUTE_DEVICES_PYTHON``,
because TensorFlow's and JAX's packages for CUDA can conflict.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...backends import TPU
from ...errors import DeviceError, DoesNotFitError, InvalidArgumentError
from ...sizes import format_bytes, parse_bytes
from . import cache
from .catalogue import Device
from .limits import current_limits

PYTHON = "KERAS_RECOMPUTE_DEVICES_PYTHON"
_WORKER = Path(__file__).with_name("worker.py")
_PACKAGES = {
    "gpu": ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    "tpu": ("jax", "jaxlib", "libtpu"),
}
_INSTALL = 'pip install "keras-recompute[devices]"'
_ASK_VERSIONS = """
import importlib.metadata as m, json, sys
versions = {d.metadata["Name"]: d.version for d in m.distributions()}
print(json.dumps({name: versions[name] for name in sys.argv[1:] if name in versions}))
"""
# XLA writes some matrix products as kernels of its own, and chooses their tiles by trying them on
# the device. Without one it finds no tiles for some products, as in vision transformers.
# Of XLA in JAX 0.10, and from 0.11 on.
_NO_TILES = "Couldn't find output tile sizes", "Failed to get configs for"
_PRODUCTS_BY_LIBRARY = {"xla_gpu_enable_triton_gemm": False}
# Out-of-memory messages of TPU compilers, for the whole program or for its temporaries alone.
_SHORT = (
    re.compile(r"Used ([0-9.]+[KMGT]?) of ([0-9.]+[KMGT]?)"),
    re.compile(r"\(([0-9.]+[KMGT]?)\) exceeds available HBM \(([0-9.]+[KMGT]?)\)"),
)
_PARTITIONS = re.compile(rb"mhlo\.num_partitions = (\d+)")


@dataclass(frozen=True)
class CompiledForDevice:
    """A program compiled for a device.

    ``serialized`` is the compiled ``xla.HloProto``. ``statistics`` are the compiler's own memory
    figures in bytes, by kind: temp, argument, output, alias and generated_code. ``seconds`` is the
    time of compilation, also if the program came from the cache.
    """

    serialized: bytes = field(repr=False)
    compiler: str
    statistics: Mapping[str, int]
    seconds: float


def compile_for(
    device: Device, module: bytes, *, timeout_seconds: float, is_stablehlo: bool = False
) -> CompiledForDevice:
    """Compile a module for ``device``, or find it in the cache.

    It is a serialized ``xla.HloModuleProto``, or a text of StableHLO. A text may be for several
    devices. What each of them runs is the compiled program then.

    Raises DeviceError if the compiler is missing, refuses the program or exceeds
    ``timeout_seconds``, InvalidArgumentError if so many devices do not come as a group, and
    DoesNotFitError if the compiler reports that the program needs more memory than the device has.
    """
    python, versions = require_compiler(device)
    count = devices_of(module) if is_stablehlo else 1
    request = {**request_for(device, count), "is_stablehlo": is_stablehlo}
    # The worker's code is part of the key, since a change of it may change the program.
    key = cache.cache_key(
        module, json.dumps([request, versions], sort_keys=True).encode(), _WORKER.read_bytes()
    )
    found = cache.find_entry(key)
    if found is None:
        try:
            found = _ask_twice(python, request, module, device, timeout_seconds)
        except OSError as error:  # such as a full disk
            raise DeviceError(
                f"the compiler for {device.title} could not be started: {error}"
            ) from error
        cache.store(key, *found)
    program, answer = found
    return CompiledForDevice(
        program,
        f"XLA of {_list(versions)} for {f'{count} x ' if count > 1 else ''}{device.title}",
        answer["statistics"],
        answer["seconds"],
    )


def require_compiler(device: Device) -> tuple[str, dict[str, str]]:
    """Return the interpreter that has the compiler for ``device``, and its packages' versions.

    Raises DeviceError if it is not installed.
    """
    python = os.environ.get(PYTHON) or sys.executable
    versions = versions_of(python, device.backend)
    # jax, jaxlib and one package with the device's compiler.
    if "jaxlib" not in versions or len(versions) < 3:
        where = f" for {python}" if os.environ.get(PYTHON) else ""
        raise DeviceError(
            f"compiling for {device.title} needs its compiler, which JAX's packages bring{where}. "
            f"{_INSTALL}, or set {PYTHON} to a Python that has them"
        )
    return python, versions


def request_for(device: Device, count: int = 1) -> dict[str, Any]:
    """Return the part of the worker's request that describes ``count`` devices.

    Raises InvalidArgumentError if so many do not come as a group.
    """
    told = dict(device.description)
    if device.backend == TPU:
        slices = dict(device.slices)
        if count not in slices:
            raise InvalidArgumentError(
                f"{device.title} comes in groups of {', '.join(map(str, slices))}, and the program "
                f"is for {count}"
            )
        topology = f"{device.name}:{slices[count]}"
        is_megacore = told["chip"] == "megacore"
        # The smallest group of chips with two cores has four of them.
        cores = max(count, 4) * 2 if is_megacore else count
        environment = {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": f"{told['accelerator']}-{cores}",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a lock lets one process compile at a time
        }
        options, xla = {"chip_config_name": told["chip"]}, {}
    else:
        topology = device.name
        environment = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
        # Autotuning would need the device itself.
        options = {"target_config": told["config"], "topology": f"1x1x{count}"}
        xla = {"xla_gpu_autotune_level": 0}
    named = {"platform": told["platform"], "topology": topology, "devices": count}
    return {**named, "options": options, "environment": environment, "xla": xla}


def devices_of(module: bytes) -> int:
    """Return for how many devices a text of StableHLO is."""
    found = _PARTITIONS.search(module)
    return int(found[1]) if found else 1


def _ask_twice(
    python: str, request: dict[str, Any], module: bytes, device: Device, timeout_seconds: float
) -> tuple[bytes, dict[str, Any]]:
    try:
        return _ask(python, request, module, device, timeout_seconds)
    except DeviceError as refusal:
        if not any(words in str(refusal) for words in _NO_TILES):
            raise
    xla = {**request["xla"], **_PRODUCTS_BY_LIBRARY}
    return _ask(python, {**request, "xla": xla}, module, device, timeout_seconds)


def _ask(
    python: str, request: dict[str, Any], module: bytes, device: Device, timeout_seconds: float
) -> tuple[bytes, dict[str, Any]]:
    with cache.work_folder() as folder, _shown(f"compiling for {device.title}"):
        (folder / "module.pb").write_bytes(module)
        (folder / "request.json").write_text(
            json.dumps({**request, "module": str(folder / "module.pb"), "folder": str(folder)})
        )
        environment = {
            k: v
            for k, v in os.environ.items()
            if k not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "PYTHONPATH")
        }
        # Flags for TensorFlow's XLA, left out of the environment, could break the other compiler.
        command = [python, str(_WORKER), str(folder / "request.json")]
        with (folder / "errors").open("wb") as errors:
            worker = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        limits = current_limits()
        seconds = limits.seconds or timeout_seconds
        try:
            limits.apply_to(worker.pid)
            worker.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"compiling for {device.title} took longer than {seconds:g} s: allow "
                "more (timeout_seconds=, --timeout), or take a smaller program"
            ) from None
        finally:
            worker.kill()  # before its input is closed, by which it would remove the folder
            worker.wait()
            assert worker.stdin is not None
            worker.stdin.close()
        try:
            answer = json.loads((folder / "answer.json").read_bytes())
        except FileNotFoundError:
            said = (folder / "errors").read_text(errors="replace").strip().splitlines()
            how = (
                f"was ended by signal {-worker.returncode}"
                if worker.returncode < 0
                else f"ended with {worker.returncode}"
            )
            raise DeviceError(
                f"the compiler for {device.title} {how}, perhaps for lack of memory{_allowed()}: "
                f"{said[-1] if said else 'it said nothing'}"
            ) from None
        if "error" in answer:
            raise _refusal(device, answer)
        return (folder / "program.hlo_proto.pb").read_bytes(), answer


@contextmanager
def _shown(what: str) -> Iterator[None]:
    """Show ``what`` and the elapsed seconds on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        progress.add_task(what, total=None)
        yield


def _refusal(device: Device, answer: Mapping[str, Any]) -> DeviceError:
    message = " ".join(str(answer["message"]).split())
    short = None
    for pattern in _SHORT:
        short = short or pattern.search(message)
    if answer["error"] == "missing":
        return DeviceError(
            f"the compiler for {device.title} cannot be loaded ({message}). {_INSTALL}"
        )
    if short and "RESOURCE_EXHAUSTED" in message:
        needed, has = (
            parse_bytes(f"{size}iB" if size[-1] in "KMGT" else size) for size in short.groups()
        )
        return DoesNotFitError(
            f"the program needs at least {format_bytes(needed)}, and {device.title} has "
            f"{format_bytes(has)}: use more checkpoints or a smaller batch",
            needed_bytes=needed,
        )
    return DeviceError(
        f"the compiler for {device.title} refused the program{_allowed()}: {message:.600}"
    )


def _allowed() -> str:
    """Return how much memory the compiler was given, in words; empty for all there is."""
    memory = current_limits().memory_bytes
    return f" (it may take {format_bytes(memory)})" if memory else ""


def versions_of(python: str, backend: str) -> dict[str, str]:
    """Return the versions of the compiler's packages that an interpreter has.

    It has the compiler for ``backend`` if there are three.
    """
    packages = _PACKAGES[backend]
    if python == sys.executable:
        found = {}
        for package in packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found
    try:
        done = subprocess.run(
            [python, "-c", _ASK_VERSIONS, *packages],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise DeviceError(
            f"{PYTHON}={python} cannot be asked for its packages: {error}. Name a Python "
            "interpreter"
        ) from error


def _list(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
