"""How long planning takes, and what the plans cost: ``python benchmarks/planning.py``.

Prints one row per plan: seconds to make it, sections, peak bytes, and time relative to the plain
pass; then models of many layers planned from end to end. Aims: 2048 equal steps under a second, 500
unequal ones and a model of 500 layers under ten.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from keras_recompute.planning import Chain
from keras_recompute.planning.single_replay import (
    replay_seconds,
    sections_peak_bytes,
    single_replay_sections,
)
from keras_recompute.sizes import format_bytes

# The LSTM of the example: batch 16, 256 units, float32. State: h and c; activations: four gates, h
# and c.
VALUE = 16 * 256 * 4
LSTM = Chain.homogeneous(2048, state_bytes=2 * VALUE, activation_bytes=6 * VALUE)


def layers(count: int) -> Chain:
    """Return ``count`` unequal layers: sizes and costs drawn at random, the same in each run."""
    draw = random.Random(1).randint
    return Chain(
        state_bytes=[draw(1, 40) * 2**15 for _ in range(count)],
        activation_bytes=[draw(20, 400) * 2**15 for _ in range(count)],
        forward_seconds=[draw(1, 9) for _ in range(count)],
        backward_seconds=[draw(2, 18) for _ in range(count)],
    )


def row(name: str, chain: Chain, percent: int) -> None:
    """Plan ``chain`` for a share of its plain peak."""
    budget = chain.plain_peak_bytes * percent // 100
    gradients = (0,) * len(chain)
    begin = time.perf_counter()
    sections = single_replay_sections(chain, room_bytes=budget, weight_gradient_bytes=gradients)
    took = time.perf_counter() - begin
    result = "none fits"
    if sections is not None:
        peak = format_bytes(sections_peak_bytes(chain, sections, gradients))
        ratio = 1 + replay_seconds(chain, sections) / chain.plain_seconds
        result = f"{len(sections):4} sections  peak {peak:>8}  time x {ratio:.4f}"
    print(f"{name}, {percent} %".ljust(32) + f"{took:7.3f} s  {result}")


def main() -> None:
    for percent in (25, 5):
        row("2048 equal steps", LSTM, percent)
    for count in (8, 50, 150, 500):
        for percent in (50, 35, 20):
            row(f"{count} unequal layers", layers(count), percent)
    for count in (50, 500):
        of_a_model(count)


def of_a_model(count: int) -> None:
    """Plan a model of ``count`` dense layers, no two alike, for half of its memory."""
    import keras

    import keras_recompute

    x = inputs = keras.Input((32,), batch_size=64)
    for number in range(count):
        x = keras.layers.Dense(32 + number % 97, activation="relu")(x)
    model = keras.Model(inputs, x)
    begin = time.perf_counter()
    _, plain = keras_recompute.plan(model, memory_budget="1TiB")
    _, plan = keras_recompute.plan(model, memory_budget=plain.plain_peak_bytes * 8 // 10)
    print(f"a model of {count} layers, planned twice {time.perf_counter() - begin:7.3f} s  {plan}")


if __name__ == "__main__":
    main()
