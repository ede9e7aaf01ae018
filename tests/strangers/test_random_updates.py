"""Random functional models after two updates: the weights are those of plain Keras, with each
optimizer.

The models have several heads of which some have no loss, embeddings, layers that are shared,
dropout and normalisation.

A longer search: ``KERAS_RECOMPUTE_EXAMPLES=60 python3 -m pytest -m ""
tests/strangers/test_random_updates.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from tests.oracle import COMPILE_OPTIONS

EXAMPLES = int(os.environ.get("KERAS_RECOMPUTE_EXAMPLES", "0"))
BATCH, TIME, WIDTH, WORDS = 6, 4, 5, 7
MODES = ("eager", "graph", "jit")
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
}
L = keras.layers
RECOMPUTED = L.Dense, L.Embedding, L.BatchNormalization

# Each makes a value (batch, time, width) of one or two others; ``s`` is a seed.
LAYERS: dict[str, Callable] = {
    "dense": lambda a, _b, _s: L.Dense(WIDTH, "tanh")(a),
    "gelu": lambda a, _b, _s: L.Dense(WIDTH, "gelu")(a),
    "wide": lambda a, _b, _s: L.Dense(WIDTH)(L.Dense(3 * WIDTH, "relu")(a)),
    "frozen": lambda a, _b, _s: L.Dense(WIDTH, "tanh", trainable=False)(a),
    "layer norm": lambda a, _b, _s: L.LayerNormalization(epsilon=0.1)(a),
    "batch norm": lambda a, _b, _s: L.BatchNormalization(epsilon=0.1)(a),
    "dropout": lambda a, _b, s: L.Dropout(0.4, seed=s)(a),
    "add": lambda a, b, _s: L.Add()([a, b]),
    "concatenate": lambda a, b, _s: L.Dense(WIDTH, "tanh")(L.Concatenate()([a, b])),
    "convolution": lambda a, _b, _s: L.Conv1D(WIDTH, 2, padding="causal", activation="tanh")(a),
}


@dataclass(frozen=True)
class Recipe:
    """What a model is made of, and how it is checkpointed."""

    steps: tuple[tuple[str, int, int], ...]
    heads: tuple[tuple[int, bool], ...]  # from which value, and whether it has a loss
    seed: int
    way: str


def recipe_of(seed: int) -> Recipe:
    drawn = random.Random(seed)
    kinds = [*LAYERS, "shared", "shared", "embedding"]
    length = drawn.randint(4, 9)
    steps = tuple(
        (drawn.choice(kinds), drawn.randint(0, 2), drawn.randint(0, 3)) for _ in range(length)
    )
    heads = tuple((drawn.randint(0, 3), drawn.random() < 0.6) for _ in range(drawn.randint(2, 4)))
    if not any(has_loss for _, has_loss in heads):
        heads = ((0, True), *heads[1:])
    return Recipe(
        steps, heads, seed, drawn.choice(["every 1", "every 2", "every 3", "layers", "scan"])
    )


def build(recipe: Recipe) -> keras.Model:
    keras.utils.set_random_seed(recipe.seed + 1)
    ids = keras.Input((TIME,), dtype="int32", name="ids")
    embedding, shared = L.Embedding(WORDS, WIDTH), L.Dense(WIDTH, "tanh")
    made = [embedding(ids)]
    for number, (kind, first, second) in enumerate(recipe.steps):
        a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
        if kind == "shared":
            made.append(shared(a))
        elif kind == "embedding":
            made.append(L.Add()([a, embedding(ids)]))
        else:
            made.append(LAYERS[kind](a, b, recipe.seed + number))
    outputs = {}
    for number, (source, _) in enumerate(recipe.heads):
        pooled = L.GlobalAveragePooling1D()(made[-1 - source % len(made)])
        outputs[f"head_{number}"] = L.Dense(2, name=f"head_{number}")(
            L.Dense(WIDTH, "tanh")(pooled)
        )
    return keras.Model(ids, outputs)


def checkpoint(model: keras.Model, way: str) -> keras.Model:
    if way == "layers":
        return kr.checkpointed(model, layers=lambda layer: isinstance(layer, RECOMPUTED))
    try:
        ours = kr.checkpointed(model, every=int(way[-1]) if way.startswith("every") else 1)
    except kr.errors.InvalidArgumentError:
        return kr.checkpointed(model, every=1)
    if way == "scan":
        ours.scan_layers = True
    return ours


def weights_after(
    model: keras.Model, recipe: Recipe, optimizer: str, mode: str
) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(recipe.seed)
    ids = drawn.integers(0, WORDS, (BATCH, TIME))
    targets = {f"head_{n}": drawn.random((BATCH, 2)) for n in range(len(recipe.heads))}
    losses = {
        f"head_{n}": "mse" if has_loss else None for n, (_, has_loss) in enumerate(recipe.heads)
    }
    model.compile(OPTIMIZERS[optimizer](), losses, **COMPILE_OPTIONS[mode])
    for _ in range(2):
        model.train_on_batch(ids, targets)
    return {f"{number} {v.path}": v.numpy() for number, v in enumerate(model.variables)}


def largest_difference(
    recipe: Recipe, optimizer: str, mode: str, dtype: str = "float32"
) -> tuple[float, str]:
    before = keras.config.floatx()
    keras.config.set_floatx(dtype)
    # Keras made the policy of layers from the type that came first.
    keras.config.set_dtype_policy(dtype)
    try:
        plain = weights_after(build(recipe), recipe, optimizer, mode)
        ours = weights_after(checkpoint(build(recipe), recipe.way), recipe, optimizer, mode)
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
    assert [a.shape for a in ours.values()] == [b.shape for b in plain.values()]
    pairs = zip(plain, ours.values(), plain.values())
    return max(
        (float(np.abs(a.astype(float) - b.astype(float)).max()), name) for name, a, b in pairs
    )


def check(seed: int, optimizer: str, mode: str) -> None:
    recipe = recipe_of(seed)
    off, name = largest_difference(recipe, optimizer, mode)
    if off <= 1e-5:
        return
    # What is left in front of a batch normalisation is rounding, of which optimizers make whole
    # steps.
    kinds = {kind for kind, *_ in recipe.steps}
    assert "batch norm" in kinds or "layer norm" in kinds, f"{name} is off by {off:.1e}: {recipe}"
    exact, name = largest_difference(recipe, optimizer, mode, "float64")
    assert exact <= 1e-5, f"{name} is off by {exact:.1e} in float64, {off:.1e} in float32: {recipe}"


pytestmark = [
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
    # Of models so small that nothing is saved.
    pytest.mark.filterwarnings(
        f"ignore::{RecomputeWarning.__module__}.{RecomputeWarning.__name__}"
    ),
]


def mark_of(seed, mode):
    if (seed, mode) == (0, "graph"):
        return ()
    return pytest.mark.long(every_case=seed in (0, 9))


@pytest.mark.parametrize(
    ("seed", "mode"),
    [pytest.param(seed, mode, marks=mark_of(seed, mode)) for seed in range(10) for mode in MODES],
)
def test_two_updates(seed, mode):
    """Each model in each mode, every one with another optimizer."""
    check(seed, list(OPTIMIZERS)[(seed + MODES.index(mode)) % len(OPTIMIZERS)], mode)


@pytest.mark.skipif(not EXAMPLES, reason="KERAS_RECOMPUTE_EXAMPLES says how many")
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_two_updates_of_each_kind(seed):
    for mode in MODES:
        for optimizer in OPTIMIZERS:
            check(seed, optimizer, mode)
