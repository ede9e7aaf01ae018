"""Training steps on the GPU of this machine, beside what was predicted without it.

    KERAS_BACKEND=jax python3 benchmarks/gpu.py --predict    on any machine, with the compilers
    KERAS_BACKEND=jax python3 benchmarks/gpu.py              on one with a GPU, and torch likewise
    python3 benchmarks/gpu.py --page                         the tables alone

Each network runs without and with checkpoints, in processes of their own. All processes compile and
train a few steps first. Then they run the timed steps one after the other, so that each has the GPU
for itself. The peak is the allocator's since the process began, weights and optimizer included.
Answers are kept in ``results/gpu.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "gpu.json", ROOT / "docs" / "benchmarks.md"
UPDATES, STEPS = 3, 7
DEVICE = "h100"
GIB = 2**30
WAYS = ("plain", "every")
BACKENDS = {"jax": "JAX", "torch": "PyTorch"}


class Network(NamedTuple):
    """A network, where its checkpoints stand, and how a row of the table calls it."""

    make: Callable[[], Any]  # a model that is not compiled
    place: dict[str, Any]
    title: str
    batch: int
    length: int | None = None  # of sequences of tokens
    dtype: str = "mixed_bfloat16"
    loss: str = "mse"


def _gpt2() -> Any:
    import keras
    import keras_hub

    sizes = {"vocabulary_size": 50257, "num_layers": 24, "num_heads": 16, "hidden_dim": 1024}
    backbone = keras_hub.models.GPT2Backbone(intermediate_dim=4096, **sizes)
    scores = backbone.token_embedding(backbone.output, reverse=True)
    return keras.Model(backbone.inputs, scores)


def _vit() -> Any:
    import keras_hub

    sizes = {"patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768}
    return keras_hub.models.ViTBackbone(image_shape=(224, 224, 3), mlp_dim=3072, **sizes)


def _resnet() -> Any:
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(224, 224, 3))


def _recurrent(ours: bool, **options: Any) -> Any:
    import keras

    import keras_recompute as kr

    layer = kr.LSTM if ours else keras.layers.LSTM
    x = inputs = keras.Input((1024, 256))
    for _ in range(4):
        x = layer(512, return_sequences=True, **options)(x)
    return keras.Model(inputs, x)


_RNN: dict[str, Any] = {"dtype": "float32"}
NETWORKS = {
    "gpt2": Network(_gpt2, {"every": 1}, "GPT-2 medium, 4 x 1,024", 4, 1024),
    "vit": Network(_vit, {"layers": "transformer_block_*"}, "ViT-B/16, 128 images", 128),
    "resnet": Network(
        _resnet,
        {"every": 13},
        "ResNet50, 128 images of 224",
        128,
        loss="categorical_crossentropy",
    ),
    "lstm": Network(lambda: _recurrent(False), {"every": 1}, "4 LSTM(512), 64 x 1,024", 64, **_RNN),
    "lstm-loop": Network(
        lambda: _recurrent(False, use_cudnn=False),
        {"every": 1},
        "the same, use_cudnn=False",
        64,
        **_RNN,
    ),
    "kr.LSTM": Network(
        lambda: _recurrent(True, use_cudnn=False),
        {"every": 1},
        "4 kr.LSTM(512), use_cudnn=False",
        64,
        **_RNN,
    ),
}


def built(name: str, way: str) -> tuple[Any, tuple[Any, Any]]:
    """Return the compiled model of one way to train a network, and a batch."""
    import keras
    import numpy as np

    import keras_recompute as kr

    of = NETWORKS[name]
    keras.config.set_dtype_policy(of.dtype)
    keras.utils.set_random_seed(0)
    model = of.make()
    if way == "every":
        model = kr.checkpointed(model, **of.place)
    rng = np.random.default_rng(0)

    def values(tensor: Any) -> Any:
        shape = (of.batch, *(of.length if side is None else side for side in tensor.shape[1:]))
        dtype = "int64" if tensor.dtype.startswith("int") else tensor.dtype
        return values_of(tensor.name, shape, dtype, rng)

    x = keras.tree.map_structure(values, model.input)
    loss: Any = of.loss
    if of.length is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        y = rng.integers(1, 20_000, (of.batch, of.length))
    else:
        y = np.full((of.batch, *model.output_shape[1:]), 1e-3, "float32")
    model.compile("adamw", loss, jit_compile=keras.backend.backend() == "jax")
    return model, (x, y)


def values_of(name: str, shape: tuple[int, ...], dtype: str, rng: Any) -> Any:
    """Return values for an input or target called ``name``.

    They are tokens, masks of ones, segments of zeros, or normal numbers.
    """
    import numpy as np

    if not dtype.startswith("int"):
        return rng.normal(size=shape).astype("float32")
    tokens = rng.integers(1, 20_000, shape, dtype)
    is_token = "mask" not in name and "segment" not in name
    return tokens if is_token else np.full(shape, int("mask" in name), dtype)


def predicted(name: str, way: str) -> dict[str, Any]:
    """Return what a run needs on a device that is not here."""
    from keras_recompute.liveness import profile

    model, batch = built(name, way)
    program = profile(model, *batch, device=DEVICE)
    # A record of PyTorch's says nothing of the allocator.
    needed = program.needed_bytes or program.peak_bytes + program.input_feed_bytes
    return {"predicted": needed}


def measured(name: str, way: str) -> dict[str, Any]:
    """Return losses, peak and seconds; timed once a line comes from the process that asked."""
    model, batch = built(name, way)
    start = time.perf_counter()
    losses = [train(model, batch)]
    first = time.perf_counter() - start
    losses += [train(model, batch) for _ in range(UPDATES - 1)]
    print("ready", flush=True)
    sys.stdin.readline()
    return {"losses": losses, "first": first, **timed(model, batch, STEPS)}


def timed(model: Any, batch: tuple[Any, Any], steps: int) -> dict[str, Any]:
    """Return the median seconds of so many steps, and the allocator's peak behind them."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        train(model, batch)
        seconds.append(time.perf_counter() - start)
    device, peak = allocator()
    return {"device": device, "peak": peak, "seconds": statistics.median(seconds)}


def train(model: Any, batch: tuple[Any, Any]) -> float:
    """Train once; return the mean of all losses so far, which waits for the device."""
    return float(model.train_on_batch(*batch, return_dict=True)["loss"])


def allocator() -> tuple[str, int]:
    """Return the name of the GPU, and the peak bytes of its allocator in this process."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        device = jax.local_devices()[0]
        return device.device_kind, device.memory_stats()["peak_bytes_in_use"]
    import torch

    return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()


def ask(
    names: Sequence[str], ways: Sequence[str], *, wait: float, predict: bool
) -> Iterator[tuple[str, str, Any]]:
    """Yield the figures of the networks in these ways, each from a process of its own.

    All compile at once. A process that has not trained after ``wait`` seconds is ended.
    """
    children, waiting = {}, []
    for name, way in itertools.product(names, ways):
        command = [sys.executable, __file__, "--one", name, way, *["--predict"] * predict]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(command, text=True, stderr=errors, **pipes)
        children[name, way] = child, errors
        if predict:
            child.wait()  # one compiler at a time
        else:
            # "ready", or nothing where it ended.
            waiting.append(threading.Thread(target=child.stdout.readline, daemon=True))
            waiting[-1].start()
    deadline = time.monotonic() + wait
    for thread, (child, _) in zip(waiting, children.values()):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            child.kill()
    for (name, way), (child, errors) in children.items():
        shown, _ = child.communicate("go\n")
        errors.seek(0)
        lines = (shown if child.returncode == 0 else errors.read()).strip().splitlines()
        said = lines[-1] if lines else f"exit {child.returncode}"
        yield name, way, json.loads(said) if child.returncode == 0 else {"error": said[:160]}


def page() -> str:
    """Return the table of all that was measured, each cell without and with checkpoints."""
    results = json.loads(RESULTS.read_text())
    titles = ["network", "backend", "predicted without the GPU, GiB", "allocator's peak, GiB"]
    titles += ["seconds per step", "first step, s", "loss of the third step differs by"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for backend, networks in results.items():
        for name, ways in networks.items():
            plain, every = (ways[way] for way in WAYS)
            cells = [NETWORKS[name].title, BACKENDS[backend]]
            for key, show in CELLS.items():
                cells.append(
                    ", ".join(show(found[key]) for found in (plain, every) if key in found)
                )
            apart = abs(every["losses"][-1] / plain["losses"][-1] - 1)
            cells.append(f"{apart:.0e}" if apart else "0")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gib(size: int) -> str:
    """Return bytes as GiB."""
    return f"{size / GIB:.2f}"


CELLS: dict[str, Callable[[Any], str]] = {
    "predicted": gib,
    "peak": gib,
    "seconds": lambda seconds: f"{seconds:.3f}",
    "first": lambda seconds: f"{seconds:.0f}",
}


def main() -> None:
    """Measure or predict the networks that are named, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--wait", type=float, default=600, help="seconds to compile and train")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps((predicted if options.predict else measured)(*options.one)))
        return
    if not options.page:
        results = json.loads(options.results.read_text()) if options.results.exists() else {}
        of_backend = results.setdefault(os.environ["KERAS_BACKEND"], {})
        for name, way, found in ask(
            options.only, options.ways, wait=options.wait, predict=options.predict
        ):
            print(name, way, found, flush=True)
            known = of_backend.setdefault(name, {})
            known[way] = {**known.get(way, {}), **found}
            options.results.write_text(json.dumps(results, indent=1) + "\n")
    if options.results == RESULTS:
        replace_table(PAGE, "gpu", page())


if __name__ == "__main__":
    main()
