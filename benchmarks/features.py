"""Try each way to recompute on the same small trainings, and say what came of it.

    python3 benchmarks/features.py                           on TensorFlow; writes its results
    KERAS_BACKEND=jax python3 benchmarks/features.py         the same on JAX, or on torch, after
                                                             pip install --no-deps returnn
    python3 benchmarks/features.py --page                    the tables of docs/comparison.md

A model of three blocks trains two steps, plain and with each block recomputed. Its weights and
states must be the plain model's after them. ``works``, ``wrong numbers``, ``saves nothing`` and
``fails`` are what was found; ``not there`` is what a library has no name for.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

import keras_recompute as kr  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "features.json"
PAGE = ROOT / "docs" / "comparison.md"
BACKEND = keras.config.backend()
TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
WORKS, WRONG, NOTHING, FAILS, ABSENT = (
    "works",
    "**wrong numbers**",
    "**saves nothing**",
    "**fails**",
    "not there",
)
# How blocks are told that they train: inside of what is recomputed, as its argument, or not at all.
INSIDE, PASSED, FOUND = "inside", "passed", ""
L = keras.layers
SHAPE = 8, 6, 16  # sequences, steps, features
Wrap = Callable[[Any], Any]


def theirs() -> tuple[str, Wrap]:
    """Return the backend's own way, and its name."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return "tf.recompute_grad", tf.recompute_grad
    if BACKEND == "jax":
        import jax

        # Of one function it keeps the program that it traced first, with what weights were then.
        return "jax.checkpoint", lambda block: jax.checkpoint(
            lambda *args, **kwargs: block(*args, **kwargs)  # noqa: PLW0108
        )
    from torch.utils.checkpoint import checkpoint

    def wrap(block: Any) -> Any:
        return lambda *args, **kwargs: checkpoint(block, *args, use_reentrant=False, **kwargs)

    return "torch.utils.checkpoint", wrap


def in_scope_of_returnn(block: Any) -> Any:
    from returnn.torch.util.gradient_checkpoint import gradient_checkpoint_scope

    def call(*args: Any, **kwargs: Any) -> Any:
        with gradient_checkpoint_scope():
            return block(*args, **kwargs)

    return call


# Ways to recompute a block: by a wrapper, or by a scope in which it is made.
WAYS: dict[str, tuple[Wrap, Callable[[], Any]]] = {
    "keras.remat": (keras.remat, nullcontext),
    "keras.RematScope": (lambda block: block, lambda: keras.RematScope(mode="full")),
    theirs()[0]: (theirs()[1], nullcontext),
}
if BACKEND == "torch":
    WAYS["RETURNN's scope"] = (in_scope_of_returnn, nullcontext)
WAYS["keras_recompute"] = (kr.checkpoint, nullcontext)


class Blocks(keras.Model):
    """Three blocks, each recomputed, and a head that is not."""

    def __init__(
        self, make: Callable[[], Any], wrap: Wrap, shape: tuple[int, ...], training: str = FOUND
    ) -> None:
        super().__init__()
        self.blocks = [make() for _ in range(3)]
        for block in self.blocks:  # not inside of what is recomputed, which not all can do
            block.build(shape)
        self.head = L.Dense(1)
        self.wrap, self.training_is = wrap, training

    def call(self, x: Any, training: Any = None) -> Any:  # noqa: ARG002  blocks find it there
        for block in self.blocks:
            if self.training_is == INSIDE:
                x = self.wrap(partial(block, training=True))(x)
            elif self.training_is == PASSED:
                x = self.wrap(block)(x, training=True)
            else:
                x = self.wrap(block)(x)
        return self.head(x)


def dense() -> Any:
    return keras.Sequential([L.Dense(16, "gelu"), L.Dense(16, "tanh")])


def with_dropout() -> Any:
    return keras.Sequential([L.Dense(16, "gelu"), L.Dropout(0.5), L.Dense(16, "tanh")])


def with_seeded_dropout() -> Any:
    return keras.Sequential([L.Dense(16, "gelu"), L.Dropout(0.5, seed=1), L.Dense(16, "tanh")])


def with_statistics() -> Any:
    return keras.Sequential([L.Dense(16), L.BatchNormalization(), L.Activation("tanh")])


def recurrent() -> Any:
    return L.LSTM(16, return_sequences=True)


def twice(wrap: Wrap) -> Wrap:
    return lambda block: wrap(wrap(block))


def trained(
    make: Callable[[], Any], wrap: Wrap, scope: Any, *, training: str = FOUND, jit: bool = True
) -> tuple[Any, list[np.ndarray]]:
    """Return the model after two steps, and its variables."""
    keras.utils.set_random_seed(0)
    with scope():
        model = Blocks(make, wrap, SHAPE, training)
    # torch.compile takes minutes, so that PyTorch runs as Keras has it by default.
    compiled = jit and BACKEND != "torch"
    model.compile("sgd", "mse", jit_compile=compiled, run_eagerly=False)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    for _ in range(2):
        model.train_on_batch(x, x[..., :1])
    values = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    return model, [np.asarray(value, "float64") for value in values]


def same_training(make: Callable[[], Any], **how: Any) -> Callable[[str], str]:
    """Return a check: the weights, statistics and seeds are those of the plain model."""
    nested = how.pop("nested", False)

    def check(way: str) -> str:
        wrap, scope = WAYS[way]
        if nested and scope is not nullcontext:
            return ABSENT
        expected = trained(make, lambda block: block, nullcontext, **how)[1]
        found = trained(make, twice(wrap) if nested else wrap, scope, **how)[1]
        alike = [np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(expected, found)]
        return WORKS if len(expected) == len(found) and all(alike) else WRONG

    return check


def half_precision(way: str) -> str:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return same_training(dense)(way)
    finally:
        keras.config.set_dtype_policy("float32")


def saves(way: str) -> str:
    """Compare the peaks of compiled or recorded steps of wide blocks, where they train them."""
    trains = same_training(dense)(way)
    if trains != WORKS:
        return trains

    def wide() -> Any:
        return keras.Sequential([L.Dense(64, "gelu") for _ in range(4)])

    def peak_bytes(wrap: Wrap, scope: Any) -> int:
        keras.utils.set_random_seed(0)
        with scope():
            model = Blocks(wide, wrap, (4096, 64))
        model.compile("sgd", "mse")
        x = np.zeros((4096, 64), "float32")
        return kr.liveness.profile(model, x, x[:, :1]).peak_bytes

    plain = peak_bytes(lambda block: block, nullcontext)
    return WORKS if peak_bytes(*WAYS[way]) < 0.75 * plain else NOTHING


def nine_layers() -> Any:
    """Return a functional model of nine layers and a head."""
    inputs = x = keras.Input((64,))
    for _ in range(9):
        x = L.Dense(64, "gelu")(x)
    return keras.Model(inputs, L.Dense(1)(x))


def finished_model(way: str) -> str:
    """Recompute sections of a functional model that exists, which is only kr.checkpointed's."""
    if way != "keras_recompute":
        return ABSENT
    model = nine_layers()
    data = np.zeros((2048, 64), "float32"), np.zeros((2048, 1), "float32")
    needed = []
    for each in (model, kr.checkpointed(model, every=3)):
        each.compile("sgd", "mse")
        needed.append(kr.liveness.profile(each, *data).peak_bytes)
    return WORKS if needed[1] < 0.75 * needed[0] else NOTHING


def budget(way: str) -> str:
    if way != "keras_recompute":
        return ABSENT
    plan = kr.plan(nine_layers(), memory_budget="6MiB", batch_size=2048)[1]
    return WORKS if plan.checkpoints and plan.compiled_peak_bytes <= 6 * 2**20 else WRONG


def function_of(x: Any) -> Any:
    for _ in range(3):
        x = keras.ops.sin(keras.ops.matmul(x, x))
    return x


def policies(way: str) -> str:
    """Keep the products of a function, and count what is kept."""
    if way == "keras_recompute":
        policy = kr.policies.save_matmuls
        kept = kr.saved_residuals(kr.checkpoint(function_of, policy=policy), ones())
        return WORKS if len(kept) >= 3 else WRONG
    if way == "jax.checkpoint":
        import jax

        policy = jax.checkpoint_policies.dots_saveable
        kept = kr.saved_residuals(jax.checkpoint(function_of, policy=policy), ones())
        return WORKS if len(kept) >= 3 else WRONG
    if way == "torch.utils.checkpoint":
        import torch
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        context = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
        x = ones().requires_grad_()
        checkpoint(function_of, x, use_reentrant=False, context_fn=context).sum().backward()
        return WORKS if x.grad is not None else WRONG
    return ABSENT


def ones() -> Any:
    return keras.ops.ones((4, 4)) / 4


def listing(way: str) -> str:
    """List what a function keeps for its backward pass."""
    if way == "keras_recompute":
        return WORKS if kr.saved_residuals(kr.checkpoint(function_of), ones()) else WRONG
    if way == "jax.checkpoint":
        from jax.ad_checkpoint import print_saved_residuals

        print_saved_residuals(function_of, ones())
        return WORKS
    return ABSENT


CHECKS: dict[str, Callable[[str], str]] = {
    "gradients of the plain model, compiled": same_training(dense),
    "the same without jit": same_training(dense, jit=False),
    "dropout: the masks of the forward pass": same_training(with_dropout, training=INSIDE),
    "dropout with a seed of its own": same_training(with_seeded_dropout, training=INSIDE),
    "batch normalization: statistics counted once": same_training(with_statistics, training=INSIDE),
    "a recurrent layer of Keras": same_training(recurrent),
    "`training=True` as an argument": same_training(with_dropout, training=PASSED),
    "one inside of another": same_training(dense, nested=True),
    "mixed precision": half_precision,
    "a step takes less than three quarters": saves,
    "sections of a functional model, as it is": finished_model,
    "checkpoints for a budget": budget,
    "policies: keep matrix products": policies,
    "a list of what is kept": listing,
}


def outcome(check: Callable[[str], str], way: str) -> dict[str, str]:
    """Return what a check found, and the first line of an error."""
    keras.backend.clear_session()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"found": check(way)}
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        return {"found": FAILS, "error": f"{type(error).__name__}: {said}"[:160]}


def table(results: dict[str, Any], backend: str) -> str:
    """Return the Markdown table of a backend."""
    rows = results[backend]["rows"]
    ways = list(next(iter(rows.values())))
    lines = [f"| on {TITLES[backend]} | {' | '.join(ways)} |"]
    lines.append("|---|" + "---|" * len(ways))
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(cells[way]['found'] for way in ways)} |")
    return "\n".join(lines)


def write_page(results: dict[str, Any]) -> None:
    """Put the tables into the page, between its comments."""
    for backend in TITLES:
        replace_table(PAGE, f"features-{backend}", table(results, backend))


def main() -> int:
    """Run the checks on Keras's backend, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page; run nothing")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if parser.parse_args().page:
        write_page(results)
        return 0
    rows: dict[str, Any] = {}
    for name, check in CHECKS.items():
        rows[name] = {way: outcome(check, way) for way in WAYS}
        print(name, {way: cell["found"] for way, cell in rows[name].items()}, flush=True)
    results[BACKEND] = {"versions": versions(), "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def versions() -> dict[str, str]:
    found = {"keras": keras.__version__, BACKEND: __import__(BACKEND).__version__}
    return {**found, "returnn": version("returnn")} if BACKEND == "torch" else found


if __name__ == "__main__":
    sys.exit(main())
