"""The models of the zoo on Keras's other backends, beside ``keras.RematScope`` and by hand.

    KERAS_BACKEND=jax python3 benchmarks/zoo_backends.py     the models that have no row yet
    KERAS_BACKEND=torch python3 benchmarks/zoo_backends.py --only ResNet50
    KERAS_BACKEND=jax python3 benchmarks/zoo_backends.py --only ResNet50 --devices v5e
                                                             adds a device to a row on JAX
    python3 benchmarks/zoo_backends.py --page                the page alone; runs nothing

Each model runs in a process of its own, with random weights, and its row is stored when it ends;
the page is ``docs/zoo-backends.md``.
KerasHub's models need ``pip install keras-hub``. Programs for an H100 and a v5e are compiled where
their compilers are (``KERAS_RECOMPUTE_DEVICES_PYTHON``). ``zoo_on_jax.py`` and
``zoo_on_torch.py`` say what is measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from zoo_backends_page import page  # noqa: E402
from zoo_models import HUB, IMAGES  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "zoo-backends.md"
BACKENDS = ("jax", "torch")

# One of each kind comes first, so that a part of the table is a fair sample.
FIRST = (
    "BertBackbone",
    "ResNet50",
    "GPT2Backbone",
    "MobileNetV2",
    "ViTBackbone",
    "LlamaBackbone",
    "VGG16",
    "ConvNeXtTiny",
    "WhisperBackbone",
    "EfficientNetB0",
)
LAST = ("DenseNet121", "InceptionResNetV2", "NASNetMobile")


def in_order() -> list[str]:
    """Return the names of all models, in the order in which they run."""
    models = {**IMAGES, **HUB}
    others = [name for name in models if name not in FIRST + LAST]
    return [*FIRST, *others, *LAST]


def stored(backend: str) -> dict[str, Any]:
    """Return the rows of a backend, and the processor that they were measured on."""
    path = RESULTS / f"zoo-{backend}.json"
    return json.loads(path.read_text()) if path.exists() else {"processor": "", "rows": {}}


def processor() -> str:
    """Return the name of the processor, and how many of its cores there are for this process."""
    listed = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in listed if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {names[0]}"


def run_alone(name: str, options: list[str]) -> dict[str, Any]:
    """Return the row of one model, measured in a process of its own."""
    command = [sys.executable, __file__, "--one", name, *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    said = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return {"error": said[:300]}


def with_earlier(row: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return ``row`` with the figures of other devices that an earlier row has."""
    if "error" in row:
        return earlier or row
    if "error" in earlier:
        return row
    whole = {**earlier, **row}
    for way, figures in row.items():
        before = earlier.get(way, {})
        if "temporaries" in figures and "temporaries" in before:
            sizes = {**before["temporaries"], **figures["temporaries"]}
            whole[way] = {**before, **figures, "temporaries": sizes}
        elif "losses" not in figures and "error" in before:
            whole[way] = before  # a way that fails on the CPU fails on each device
    return whole


def main(argv: list[str] | None = None) -> int:
    """Measure models on the backend of KERAS_BACKEND, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="a model to run, again too")
    parser.add_argument("--devices", default="cpu,h100,v5e", help="on JAX (%(default)s)")
    parser.add_argument(
        "--no-plan", action="store_true", help="on JAX without the plan, which compiles many times"
    )
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    backend = os.environ.get("KERAS_BACKEND", "")
    if not options.page and backend not in BACKENDS:
        parser.error(f"KERAS_BACKEND is {backend!r}: set it to one of {', '.join(BACKENDS)}")
    if options.one:
        warnings.simplefilter("ignore")
        measure = importlib.import_module(f"zoo_on_{backend}").measure
        devices = options.devices.split(",")
        print(json.dumps(measure(options.one, devices, is_planned=not options.no_plan)))
        return 0
    if not options.page:
        found = stored(backend)
        if "cpu" in options.devices:
            found["processor"] = processor()
        done = [name for name, row in found["rows"].items() if "error" not in row]
        names = options.only or [name for name in in_order() if name not in done]
        asked = ["--devices", options.devices, *["--no-plan"] * options.no_plan]
        for number, name in enumerate(names, start=1):
            start = time.monotonic()
            row = run_alone(name, asked)
            found["rows"][name] = with_earlier(row, found["rows"].get(name, {}))
            (RESULTS / f"zoo-{backend}.json").write_text(json.dumps(found, indent=1) + "\n")
            said = row.get("error", f"{time.monotonic() - start:.0f} s")
            print(f"{number} of {len(names)}: {name}: {said}", flush=True)
    PAGE.write_text(page({backend: stored(backend) for backend in BACKENDS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
