"""How long planning takes, and what the plans cost: ``python benchmarks/planning.py``.

Prints one row per plan: seconds to make it, actions, peak bytes, replayed steps, and time relative
to the plain pass, by the pretend machine; then models of many layers planned from end to end. Aims:
2048 equal steps under a second, 500 unequal ones and a model of 500 layers under ten.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from keras_recompute.planning import (
    Chain,
    Plan,
    binomial_plan,
    mixed_plan,
    multilevel_plan,
    optimal_plan,
    simulate,
    uniform_plan,
    uniform_plan_within,
)
from keras_recompute.sizes import format_bytes

# The LSTM of the example: batch 16, 256 units, float32. State: h and c; activations: four gates, h
# and c.
VALUE = 16 * 256 * 4
LSTM = Chain.homogeneous(2048, state_bytes=2 * VALUE, activation_bytes=6 * VALUE)
# Gruslys et al. 2016: activations five times the state; the step in work, 5 bytes, is not part of
# their budget.
PAPER = Chain.homogeneous(1000, state_bytes=1, activation_bytes=5)
WITH_INPUT = replace(PAPER, state_bytes=(0, *PAPER.state_bytes[1:]))


def layers(count: int) -> Chain:
    """Return ``count`` unequal layers: sizes and costs drawn at random, the same in each run."""
    draw = random.Random(1).randint
    return Chain(
        state_bytes=[draw(1, 40) * 2**15 for _ in range(count)],
        activation_bytes=[draw(20, 400) * 2**15 for _ in range(count)],
        forward_seconds=[draw(1, 9) for _ in range(count)],
        backward_seconds=[draw(2, 18) for _ in range(count)],
    )


def row(name: str, chain: Chain, make: Callable[[], Plan]) -> None:
    begin = time.perf_counter()
    plan = make()
    took = time.perf_counter() - begin
    outcome = simulate(chain, plan)
    print(
        f"{name:44} {took:7.3f} s  {len(plan):6} actions  peak "
        f"{format_bytes(outcome.peak_bytes):>8}  replayed {outcome.replayed_steps:6}  time x "
        f"{outcome.seconds / chain.plain_seconds:.4f}"
    )


def main() -> None:
    row("uniform, 2048 steps, 7 checkpoints", LSTM, lambda: uniform_plan(2048, checkpoints=7))
    row(
        "two levels, 2048 steps, 8 x 16",
        LSTM,
        lambda: multilevel_plan(2048, sections_per_level=(8, 16)),
    )
    for slots in (2, 8, 63):
        row(f"binomial, 2048 steps, {slots} slots", LSTM, partial(binomial_plan, 2048, slots=slots))
    plain = LSTM.plain_peak_bytes
    for percent in (25, 5, 2, 1):
        budget = plain * percent // 100
        row(f"mixed, 2048 steps, {percent} %", LSTM, partial(mixed_plan, LSTM, budget_bytes=budget))
    for percent in (25, 5):
        budget = plain * percent // 100
        row(
            f"uniform within, 2048 steps, {percent} %",
            LSTM,
            partial(uniform_plan_within, LSTM, budget_bytes=budget),
        )
    for percent in (5, 2, 1):
        budget = 50 * percent + 5
        row(
            f"mixed, the paper's 1000 steps, {percent} %",
            PAPER,
            partial(mixed_plan, PAPER, budget_bytes=budget),
        )
        budget = 50 * percent
        row(
            f"  with the step in work inside, {percent} %",
            PAPER,
            partial(mixed_plan, PAPER, budget_bytes=budget),
        )
        # The input of the chain is alive whatever the plan, which a plan for one byte more has paid
        # for.
        row(
            f"  and the chain's input outside, {percent} %",
            WITH_INPUT,
            partial(mixed_plan, PAPER, budget_bytes=budget + 1),
        )
    for count in (8, 50, 150, 500):
        chain = layers(count)
        for percent in (50, 20, 8):
            least = max(chain.activation_bytes) + max(chain.state_bytes)
            budget = max(2 * least, chain.plain_peak_bytes * percent // 100)
            row(
                f"optimal, {count} unequal layers, {percent} %",
                chain,
                partial(optimal_plan, chain, budget_bytes=budget),
            )
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
