"""What wrapping a function in ``checkpoint`` costs beyond the recomputation: ``python3
benchmarks/overhead.py``.

One step is the value and all gradients of a chain of products and tanh. Timed, in turns so that all
see the same machine: the plain step; the step of ``checkpoint`` with the policy
``save_everything``, which repeats nothing; the step of ``checkpoint(fn)``, which repeats the
forward pass; and the forward pass alone, which is what that repetition should cost. The aim is an
overhead of 5 % or less of the step. Medians; run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras_recompute as kr


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=512, help="rows of the input (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="width of every layer (%(default)s)")
    parser.add_argument("--depth", type=int, default=16, help="layers (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=40, help="timed runs of each step (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args(argv)


def steps(
    arguments: argparse.Namespace, *, jit: bool
) -> tuple[dict[str, Callable[..., Any]], tf.Tensor]:
    """Return the steps to time by name, and the input ``(batch, width)``."""
    width = arguments.width
    weights = [
        tf.Variable(tf.random.stateless_normal((width, width), (n, 0)) / width**0.5)
        for n in range(arguments.depth)
    ]

    def network(x: tf.Tensor) -> tf.Tensor:
        for w in weights:
            x = tf.tanh(x @ w)
        return x

    def step_of(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
        def step(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(function(x) ** 2)
            return loss, tape.gradient(loss, weights)

        return tf.function(step, jit_compile=jit, autograph=False)

    timed = {
        "plain": step_of(network),
        "save_everything": step_of(kr.checkpoint(network, policy=kr.policies.save_everything)),
        "recompute": step_of(kr.checkpoint(network)),
        "forward": tf.function(network, jit_compile=jit, autograph=False),
    }
    return timed, tf.random.stateless_normal((arguments.batch, width), (9, 9))


def seconds(timed: dict[str, Callable[..., Any]], x: tf.Tensor, count: int) -> dict[str, float]:
    """Return the median seconds of each step, run in turns."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(count + 2):
        for name, step in timed.items():
            begin = time.perf_counter()
            tf.nest.flatten(step(x))[0].numpy()
            if turn >= 2:  # the first turns trace and compile
                found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in found.items()}


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    figures = {}
    print(
        f"{'':10}{'plain':>10}{'wrapped':>10}{'over':>8}"
        f"{'recompute':>11}{'+forward':>10}{'over':>8}"
    )
    for mode, jit in (("graph", False), ("compiled", True)):
        timed, x = steps(arguments, jit=jit)
        s = seconds(timed, x, arguments.steps)
        wrapped = s["save_everything"] / s["plain"] - 1
        counted = s["plain"] + s["forward"]
        recomputed = (s["recompute"] - counted) / counted
        figures[mode] = {
            **s,
            "overhead_of_wrapping": wrapped,
            "overhead_of_recomputing": recomputed,
        }
        print(
            f"{mode:10}{s['plain'] * 1e3:8.2f}ms{s['save_everything'] * 1e3:8.2f}ms{wrapped:+8.1%}"
            f"{s['recompute'] * 1e3:9.2f}ms{counted * 1e3:8.2f}ms{recomputed:+8.1%}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
