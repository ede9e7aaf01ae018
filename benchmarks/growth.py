"""How the cost of a compiled training step grows with depth, width and length.

    python3 benchmarks/growth.py                all that is missing; writes the page
    python3 benchmarks/growth.py --page         the table alone

A transformer of Keras's layers is built without values of its weights, and its step with AdamW in
mixed_bfloat16 is compiled for a GPU that is not here: plain, with a checkpoint behind every block,
and with that and ``scan_layers``. Each question runs in a process of its own. Answers are kept in
``results/growth.json``. Needs JAX and the compilers of the devices, here or in the environment of
KERAS_RECOMPUTE_DEVICES_PYTHON.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from full_size import GIB, ask, cell, costs_since  # noqa: E402
from readme_table import replace_table  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "growth.json", ROOT / "docs" / "full-size.md"
DEVICE = "h100"
DEPTH, WIDTH, LENGTH, HEAD = 8, 512, 2048, 64
SIZES = [
    *((depth, WIDTH, LENGTH) for depth in (8, 32, 128)),
    *((DEPTH, width, LENGTH) for width in (1024, 2048, 4096)),
    *((DEPTH, WIDTH, length) for length in (8192, 32768, 131072)),
]
WAYS = ("plain", "every block", "scan_layers")


def transformer(depth: int, width: int, length: int) -> Any:
    """Return a model of ``depth`` blocks; block ``n`` ends with the layer ``block_n``."""
    import keras

    layers = keras.layers
    x = inputs = keras.Input((length, width))
    for number in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(width // HEAD, HEAD)(y, y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))
        x = layers.Add(name=f"block_{number}")([x, y])
    return keras.Model(inputs, x)


def answered(*question: str) -> dict[str, Any]:
    """Return what a step needs, and what it took to find that out.

    The question is depth, width, length, and the way to train.
    """
    *sizes, way = question
    depth, width, length = map(int, sizes)
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    import keras

    import keras_recompute as kr
    from keras_recompute.errors import DoesNotFitError

    keras.config.set_dtype_policy("mixed_bfloat16")
    begin = time.perf_counter()
    with kr.liveness.abstract():
        model = transformer(depth, width, length)
    if way != WAYS[0]:
        model = kr.checkpointed(model, at=[f"block_{n}" for n in range(depth - 1)])
        model.scan_layers = way == WAYS[2]
    model.compile("adamw", "mse")
    batch = keras.KerasTensor((1, length, width), "float32")
    try:
        program = kr.liveness.profile(model, batch, batch, device=DEVICE)
        found = {"needed": program.needed_bytes, "seconds": program.compile_seconds}
    except DoesNotFitError as error:
        found = {"needed": error.needed_bytes}
    return {**found, **costs_since(begin), "weights": model.count_params()}


def table(results: dict[str, Any]) -> str:
    """Return the table of all sizes, each cell in all ways."""
    titles = ["blocks, width, tokens", "weights", "needed, GiB", "compile, s", "in all, s"]
    titles.append("memory of the question, GiB")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for depth, width, length in SIZES:
        of_size = [results.get(f"{depth}, {width}, {length}, {way}", {}) for way in WAYS]
        known = [each["weights"] for each in of_size if "weights" in each]
        weights = f"{known[0] / 1e6:.0f}M" if known else ""
        row = [f"{depth}, {width}, {length:,}", weights, cell(of_size, "needed", GIB, 2)]
        row += [cell(of_size, "seconds", 1, 0), cell(of_size, "all_seconds", 1, 0)]
        lines.append(f"| {' | '.join([*row, cell(of_size, 'resident', GIB, 1)])} |")
    return "\n".join(lines)


def main() -> None:
    """Answer what is missing, and write the table."""
    asked = [(*map(str, size), way) for size in SIZES for way in WAYS]

    def write(results: dict[str, Any]) -> None:
        replace_table(PAGE, "full-size-growth", table(results))

    ask(__file__, asked, answered, RESULTS, write)


if __name__ == "__main__":
    main()
