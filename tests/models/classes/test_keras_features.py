"""What Keras lets people do with a model, each beside the plain model: losses of a few steps, and
all weights afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from tests.oracle import assert_all_close, gradient_step

from ..networks import numbers

L = keras.layers
VECTORS, SEQUENCES, WORDS = (
    numbers(8, 6),
    numbers(8, 5, 6),
    np.random.default_rng(0).integers(1, 9, (8, 5)),
)
IMAGES = numbers(8, 4, 5, 5, 2)


def chain(*layers: Any, shape: tuple[int, ...] = (6,), **options: Any) -> keras.Model:
    inputs = x = keras.Input(shape, **options)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def dense(depth: int = 4, units: int = 6) -> list[Any]:
    return [L.Dense(units, "tanh", name=f"layer_{n}") for n in range(depth)]


def with_lora() -> keras.Model:
    model = chain(
        L.Embedding(9, 6, name="words"),
        *dense(2),
        L.EinsumDense("abc,cd->abd", (5, 6), activation="tanh", name="einsum"),
        L.Dense(2, name="end"),
        shape=(5,),
        dtype="int32",
    )
    for name in ("words", "layer_0", "einsum"):
        model.get_layer(name).enable_lora(2)
    return model


def quantized_with_lora() -> keras.Model:
    model = chain(*dense(3), L.Dense(2))
    for layer in model.layers[1:]:
        layer.quantize("int8")
        layer.enable_lora(2)
    return model


def quantized_in_front() -> keras.Model:
    model = chain(*dense(4), L.Dense(2))
    for layer in model.layers[1:3]:
        layer.quantize("int8")
        layer.trainable = False
    return model


def frozen(*names: str) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = chain(
            L.Dense(6, name="first"), L.BatchNormalization(name="norm"), *dense(4), L.Dense(2)
        )
        for name in names:
            model.get_layer(name).trainable = False
        return model

    return build


@keras.saving.register_keras_serializable(package="tests.everything")
class Cell(L.Layer):
    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, shape: Any) -> None:
        self.into = self.add_weight(shape=(shape[-1], self.units), name="into")
        self.over = self.add_weight(shape=(self.units, self.units), name="over")

    def call(self, x: Any, states: Any) -> Any:
        state = keras.ops.tanh(x @ self.into + states[0] @ self.over)
        return state, [state]


def several() -> keras.Model:
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    a, b = L.Dense(6, "tanh")(left), L.Dense(6, "tanh")(right)
    x = L.Dense(6, "tanh")(L.Add()([a, b]))
    end = L.Dense(1, name="end")(L.Dense(6, "tanh")(x))
    return keras.Model(
        {"left": left, "right": right}, {"middle": L.Dense(2, name="middle")(x), "end": end}
    )


@dataclass(frozen=True)
class Case:
    build: Callable[[], keras.Model]
    x: Any = field(default_factory=lambda: VECTORS)
    policy: str = "float32"
    optimizer: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)
    y: Any = None
    every: int = 1
    tolerance: float = 1e-5


def plain_chain() -> keras.Model:
    return chain(*dense(), L.Dense(2))


CLASSES = {
    "compiled": {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    "y": np.arange(8) % 2,
}
CASES = {
    "float16": Case(plain_chain, policy="mixed_float16", tolerance=1e-3),
    "bfloat16": Case(plain_chain, policy="mixed_bfloat16", tolerance=1e-2),
    "lora": Case(with_lora, WORDS),
    "int8 and lora": Case(quantized_with_lora),
    "int8 in front": Case(quantized_in_front),
    "frozen front": Case(frozen("first", "norm", "layer_0")),
    "frozen middle": Case(frozen("layer_1", "layer_2")),
    "sample_weight": Case(plain_chain, fitted={"sample_weight": np.linspace(0, 1, 8)}),
    "class_weight": Case(plain_chain, fitted={"class_weight": {0: 0.3, 1: 2.0}}, **CLASSES),
    "accumulation": Case(plain_chain, optimizer={"gradient_accumulation_steps": 2}),
    "average of weights": Case(
        plain_chain, optimizer={"use_ema": True, "ema_overwrite_frequency": 2}
    ),
    "clipping and decay": Case(
        plain_chain, optimizer={"global_clipnorm": 0.1, "weight_decay": 0.01}
    ),
    "steps_per_execution": Case(plain_chain, compiled={"loss": "mse", "steps_per_execution": 2}),
    "bidirectional": Case(
        lambda: chain(
            L.Bidirectional(L.LSTM(3, return_sequences=True)),
            L.Bidirectional(L.GRU(3)),
            L.Dense(2),
            shape=(5, 6),
        ),
        SEQUENCES,
    ),
    "time distributed": Case(
        lambda: chain(*(L.TimeDistributed(L.Dense(4, "tanh")) for _ in range(3)), shape=(5, 6)),
        SEQUENCES,
    ),
    "convolutional lstm": Case(
        lambda: chain(
            L.ConvLSTM2D(2, 3, return_sequences=True),
            L.ConvLSTM2D(2, 2),
            L.Flatten(),
            L.Dense(2),
            shape=(4, 5, 5, 2),
        ),
        IMAGES,
    ),
    "cells": Case(
        lambda: chain(
            L.RNN(Cell(4), return_sequences=True),
            L.RNN([Cell(3), Cell(4)]),
            L.Dense(2),
            shape=(5, 6),
        ),
        SEQUENCES,
    ),
    "masks": Case(
        lambda: chain(
            L.Embedding(9, 4, mask_zero=True),
            L.LSTM(4, return_sequences=True),
            L.LSTM(4),
            L.Dense(2),
            shape=(5,),
        ),
        np.where(np.arange(5) < np.arange(1, 9)[:, None], WORDS, 0),
    ),
    "several": Case(
        several,
        {"left": VECTORS, "right": VECTORS[::-1]},
        y={"middle": numbers(8, 2, seed=1), "end": numbers(8, 1, seed=2)},
        compiled={
            "loss": {"middle": "mse", "end": "mae"},
            "loss_weights": {"middle": 2.0, "end": 0.5},
        },
    ),
}


def outcome(model: keras.Model, case: Case, *, jit: bool) -> tuple[list[float], list[np.ndarray]]:
    y = case.y if case.y is not None else numbers(8, *model.output_shape[1:], seed=1)
    compiled = {"loss": "mse", **case.compiled}
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.5, **case.optimizer), jit_compile=jit, **compiled
    )
    losses = model.fit(
        case.x, y, batch_size=2, epochs=1, shuffle=False, verbose=0, **case.fitted
    ).history["loss"]
    kept = [v.numpy() for v in model.optimizer.variables if "float" in v.dtype]
    return losses, [*(np.asarray(w, "float32") for w in model.get_weights()), *kept]


# Under XLA all were tried once; those that compile fast or differ there are tried again.
COMPILED = ("float16", "int8 and lora", "frozen front", "several")
QUICK = ("sample_weight",)


@pytest.mark.parametrize(
    ("name", "jit"),
    [
        *(
            pytest.param(name, False, marks=() if name in QUICK else pytest.mark.long)
            for name in CASES
        ),
        *(pytest.param(name, True, marks=pytest.mark.long) for name in COMPILED),
    ],
)
def test_it_goes_as_in_the_plain_model(name, jit):
    case = CASES[name]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case.policy)
    try:
        found = []
        for ours in (True, False):
            keras.utils.set_random_seed(1)
            model = case.build()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecomputeWarning)
                found.append(
                    outcome(
                        kr.checkpointed(model, every=case.every) if ours else model, case, jit=jit
                    )
                )
    finally:
        keras.config.set_dtype_policy(before)
    (our_losses, our_values), (losses, values) = found
    np.testing.assert_allclose(our_losses, losses, rtol=case.tolerance)
    assert_all_close(our_values, values, rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize(("frozen_layers", "replayed"), [(0, 3), (2, 2), (4, 1), (6, 0)])
def test_sections_with_nothing_to_train_up_to_them_are_not_replayed(frozen_layers, replayed):
    """Four sections of two layers, of which the last is never replayed; a section replays the first
    of its two.
    """
    model = chain(*dense(8))
    for layer in model.layers[1 : frozen_layers + 1]:
        layer.trainable = False
    ours = kr.checkpointed(model, every=2)

    step = tf.function(gradient_step(ours, loss=tf.reduce_sum))
    function = step.get_concrete_function(tf.TensorSpec((4, 6)))
    waiting, runs = [t.op for t in function.outputs], set()
    while waiting:
        operation = waiting.pop()
        if operation not in runs:
            runs.add(operation)
            waiting += [*(t.op for t in operation.inputs), *operation.control_inputs]
    assert [op.type for op in runs].count("Tanh") == 8 + replayed
