"""What kinds of operation cost in a section and outside: ``python3 benchmarks/operations.py``.

Every section of a checkpointed model is a branch or a loop's body of the compiled program, and XLA
treats some operations better in the entry computation. Here each kind that keras.applications and
KerasHub use is compiled three times, forward and with its gradients: in the entry computation as
TensorFlow writes it, in a branch as TensorFlow writes it, and in a checkpoint, where this library
writes some operations otherwise and runs the forward pass twice. Printed are milliseconds, the
least of a few runs, and MiB of temporaries. The ratio is that of the checkpoint to the entry
computation with two forward passes; those above 1.2 are marked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras_recompute as kr
from keras_recompute.liveness.program import TEMPORARY, held_per_step
from keras_recompute.liveness.xla_compilation import profile

MIB = 2**20
IMAGE, ROWS = (8, 32, 32, 64), (8, 256, 256)


def operations() -> dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]:
    """Return functions of tensors with the shapes of these: ``(batch, height, width, channels)``,
    ``(batch, time, units)``.
    """
    nn, image = tf.nn, tf.image
    numbers = tf.constant([[(7 * t * b) % 512 for t in range(256)] for b in range(1, 9)])
    order = tf.constant([(37 * t) % 256 for t in range(256)])

    def norm(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
        mean, variance = nn.moments(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    def attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        return tf.einsum("bqk,bkd->bqd", nn.softmax(tf.einsum("bqd,bkd->bqk", q, k)), v)

    return {
        "max pooling 2x2, stride 2": (lambda x: nn.max_pool2d(x, 2, 2, "VALID"), (IMAGE,)),
        "max pooling 3x3, stride 2": (lambda x: nn.max_pool2d(x, 3, 2, "SAME"), (IMAGE,)),
        "max pooling 3x3, stride 1": (lambda x: nn.max_pool2d(x, 3, 1, "SAME"), (IMAGE,)),
        "average pooling 2x2, stride 2": (lambda x: nn.avg_pool2d(x, 2, 2, "VALID"), (IMAGE,)),
        "average pooling 3x3, stride 1": (lambda x: nn.avg_pool2d(x, 3, 1, "SAME"), (IMAGE,)),
        "mean over the image": (lambda x: tf.reduce_mean(x, [1, 2]), (IMAGE,)),
        "largest of the image": (lambda x: tf.reduce_max(x, [1, 2]), (IMAGE,)),
        "doubling, as UpSampling2D": (lambda x: tf.repeat(tf.repeat(x, 2, 1), 2, 2), (IMAGE,)),
        "resizing, bilinear": (lambda x: image.resize(x, (64, 64)), (IMAGE,)),
        "batch normalization": (lambda x: norm(x, [0, 1, 2]), (IMAGE,)),
        "layer normalization": (lambda x: norm(x, [-1]), (ROWS,)),
        "softmax": (nn.softmax, (ROWS,)),
        "gelu": (nn.gelu, (ROWS,)),
        "swish": (nn.swish, (IMAGE,)),
        "product with a matrix": (lambda x, w: x @ w, (ROWS, (256, 256))),
        "product of stacks": (tf.matmul, (ROWS, ROWS)),
        "attention": (attention, (ROWS, ROWS, ROWS)),
        "einsum, heads": (lambda x, w: tf.einsum("btd,dhk->bhtk", x, w), (ROWS, (256, 8, 32))),
        "embedding": (lambda table: tf.gather(table, numbers), ((512, 256),)),
        "gather along time": (lambda x: tf.gather(x, order, axis=1), (ROWS,)),
        "gather_nd": (lambda x: tf.gather_nd(x, tf.stack([tf.range(8), tf.range(8)], 1)), (ROWS,)),
        "scatter": (
            lambda x: tf.scatter_nd(order[:, None], tf.transpose(x, [1, 0, 2]), (256, 8, 256)),
            (ROWS,),
        ),
        "segment sum": (lambda x: tf.math.unsorted_segment_sum(x, order[:8] % 4, 4), (ROWS,)),
        "cumulative sum": (lambda x: tf.cumsum(x, 1), (ROWS,)),
        "sort": (lambda x: tf.sort(x, -1), ((8, 32, 256),)),
        "top 8": (lambda x: tf.math.top_k(x, 8).values, (ROWS,)),
        "transpose": (lambda x: tf.transpose(x, [0, 2, 1]) * 2.0, (ROWS,)),
        "padding": (lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), (IMAGE,)),
        "mirror padding": (
            lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT"),
            (IMAGE,),
        ),
        "concatenation": (lambda x, y: tf.concat([x, y * 2.0], -1), (IMAGE, IMAGE)),
        "split and swap": (lambda x: tf.concat(tf.split(x, 2, -1)[::-1], -1), (IMAGE,)),
        "space to depth": (lambda x: nn.space_to_depth(x, 2), (IMAGE,)),
        "depth to space": (lambda x: nn.depth_to_space(x, 2), (IMAGE,)),
        "one step of rolling": (lambda x: tf.roll(x, 3, 1), (IMAGE,)),
        "strided slice": (lambda x: x[:, ::2, ::2], (IMAGE,)),
        "reversal": (lambda x: tf.reverse(x, [1]) * 2.0, (ROWS,)),
        "tiling": (lambda x: tf.tile(x, [1, 2, 2, 1]), ((8, 16, 16, 64),)),
        "norm of rows": (lambda x: tf.norm(x, axis=-1), (ROWS,)),
    }


def measured(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], runs: int
) -> tuple[float, float]:
    """Return milliseconds of the compiled ``function`` of tensors and a predicate, and its MiB of
    temporaries.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    values = [tf.random.stateless_normal(shape, (number, 1)) for number, shape in enumerate(shapes)]
    arguments = (*values, tf.constant(True))
    record = profile(compiled, *arguments)
    held = held_per_step(record.buffers, (TEMPORARY,), record.program_steps)
    seconds = []
    for _ in range(runs + 1):  # the first compiles
        start = time.perf_counter()
        tf.nest.flatten(compiled(*arguments))[0].numpy()
        seconds.append(time.perf_counter() - start)
    return 1000 * min(seconds[1:]), max(held) / MIB


def variants(function: Callable[..., Any], *, gradient: bool) -> dict[str, Callable[..., Any]]:
    """Return ``function``, or its gradients, in the entry computation, in a branch, and in a
    checkpoint.
    """

    def of(inner: Callable[..., Any]) -> Callable[..., Any]:
        if not gradient:
            return inner

        def gradients(*tensors: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                loss = tf.reduce_sum(tf.sin(inner(*tensors)))
            return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, tensors)]

        return gradients

    def branch(*given: tf.Tensor) -> Any:
        *tensors, predicate = given
        inside = lambda: tf.nest.flatten(of(function)(*tensors))  # noqa: E731
        shapes = [
            (t.shape, t.dtype)
            for t in tf.nest.flatten(tf.function(inside).get_concrete_function().structured_outputs)
        ]
        return tf.cond(
            predicate, inside, lambda: [tf.zeros(shape, dtype) for shape, dtype in shapes]
        )

    checkpointed = kr.checkpoint(lambda *tensors: function(*tensors))  # noqa: PLW0108 - a builtin tells no signature
    return {
        "entry": lambda *given: of(function)(*given[:-1]),
        "branch": branch,
        "checkpoint": lambda *given: of(checkpointed)(*given[:-1]),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each (%(default)s)")
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    options = parser.parse_args(argv)
    print(
        "| operation | | ms: entry / branch / checkpoint | ratio | temporaries, MiB "
        "|\n|---|---|---|---|---|"
    )
    for name, (function, shapes) in operations().items():
        if options.only not in name:
            continue
        forward = {
            k: measured(f, shapes, options.runs)
            for k, f in variants(function, gradient=False).items()
        }
        both = {
            k: measured(f, shapes, options.runs)
            for k, f in variants(function, gradient=True).items()
        }
        twice = both["entry"][0] + forward["entry"][0]
        for kind, found, least in (
            ("forward", forward, forward["entry"][0]),
            ("with gradients", both, twice),
        ):
            ratio = found["checkpoint"][0] / least
            shown = f"**{ratio:.1f}**" if ratio > 1.2 else f"{ratio:.1f}"
            milliseconds, memory = (
                " / ".join(f"{row[n]:.{2 - n}f}" for row in found.values()) for n in (0, 1)
            )
            print(f"| {name} | {kind} | {milliseconds} | {shown} | {memory} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
