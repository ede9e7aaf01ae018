"""A made-up report as large as reports get: 20,000 steps and 50,000 buffers whose sums are those of
its steps.
"""

from __future__ import annotations

import random

from keras_recompute.liveness import Buffer, Program, Step
from keras_recompute.liveness.program import held_per_step

KIB = 2**10


def large_program(*, steps: int = 20_000, buffers: int = 50_000, seed: int = 1) -> Program:
    """Return a program that goes forward through forty layers, then back, and updates."""
    chance = random.Random(seed)
    layers = [f"network/block_{n // 4}/layer_{n % 4}" for n in range(40)]
    turn, update = int(steps * 0.45), int(steps * 0.95)

    def phase(step: int) -> str:
        return "forward" if step < turn else "backward" if step < update else "update"

    def layer(step: int) -> str:
        way = step / turn if step < turn else 1 - (step - turn) / (steps - turn)
        return layers[min(int(way * len(layers)), len(layers) - 1)]

    made = [
        Buffer(f"{name}/kernel", 900 * KIB, 0, steps - 1, "always-live", "weight", layer=name)
        for name in layers
    ]
    for number in range(buffers - len(made)):
        first = chance.randrange(steps)
        stays = first < turn and chance.random() < 0.04
        last = (
            steps - 1 - int(first * (steps - turn) / turn)
            if stays
            else first + chance.randrange(1, 40)
        )
        size = chance.choice((4, 16, 64, 64, 256)) * KIB * (2 if stays else 1)
        category = (
            "checkpoint"
            if stays and number % 9 == 0
            else "activation"
            if phase(first) == "forward"
            else "gradient"
        )
        op_name = f"{layer(first)}/MatMul_{number % 7}"
        last = max(min(last, steps - 1), first)
        made.append(
            Buffer(
                f"fusion.{number}",
                size,
                first,
                last,
                "temporary",
                category,
                op_name,
                layer(first),
                phase(first),
                None,
            )
        )
    held = held_per_step(made, ("temporary",), steps)
    scheduled = (
        Step(f"fusion.{n}", h, f"{layer(n)}/MatMul", layer(n), phase(n)) for n, h in enumerate(held)
    )
    return Program("large", "hand", tuple(scheduled), tuple(made), capacity_bytes=2**30)
