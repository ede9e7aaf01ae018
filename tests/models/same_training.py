"""A model and its plain twin, with the same weights and the same random state, and what they must
agree in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_recompute.models.classes.model import Model
from tests.oracle import outputs_and_gradients


def model_pair(build: Callable[[Any], Any]) -> tuple[keras.Model, keras.Model]:
    """Return ``build(keras_recompute Model)`` and ``build(keras.Model)``, equal in everything
    else.
    """
    made = []
    for model_class in (Model, keras.Model):
        keras.utils.set_random_seed(1)
        model = build(model_class)
        weights = [
            w + 0.1 * np.cos(np.arange(w.size)).reshape(w.shape) for w in model.get_weights()
        ]
        model.set_weights(weights)  # a bias of zeros would hide what goes wrong with it
        made.append(model)
    assert type(made[0]) is Model
    assert type(made[1]) is not Model
    return made[0], made[1]


def training_pass(
    model: keras.Model, arrays: Sequence[np.ndarray], *, mode: str
) -> dict[str, np.ndarray]:
    """Return outputs, gradients of inputs and weights, and the other variables afterwards.
    ``mode``: eager, graph, jit.
    """
    variables = [v.value for v in model.trainable_variables]

    def call(*inputs):
        return keras.tree.flatten(model(inputs if len(inputs) > 1 else inputs[0], training=True))

    outputs, gradients = outputs_and_gradients(
        call, arrays, variables, mode=mode, unconnected="zero"
    )
    names = [f"d input {n}" for n in range(len(gradients) - len(variables))] + [
        f"d {v.path}" for v in model.trainable_variables
    ]
    found = {f"output {n}": y for n, y in enumerate(outputs)}
    found.update(
        (f"{name} ({n})", g) for n, (name, g) in enumerate(zip(names, gradients, strict=True))
    )
    found.update(
        (f"{v.path} afterwards ({n})", v.value) for n, v in enumerate(model.non_trainable_variables)
    )
    return {name: tf.cast(t, tf.float64).numpy() for name, t in found.items()}


def assert_agree(
    ours: dict[str, np.ndarray],
    plain: dict[str, np.ndarray],
    tolerance: float = 1e-5,
    *,
    least_scale: float = 1e-3,
) -> None:
    """Assert that all results lie within ``tolerance`` of the plain model's largest result of that
    kind.

    Results smaller than ``least_scale``, which may be nothing but rounding, are measured by that
    instead.
    """
    assert len(ours) == len(plain)
    for (name, a), (plain_name, b) in zip(ours.items(), plain.items(), strict=True):
        assert a.shape == b.shape, f"{name}: {a.shape} against {b.shape}"
        scale = max(np.abs(b).max(initial=0.0), least_scale)
        off = np.abs(a - b).max(initial=0.0) / scale
        assert off <= tolerance, (
            f"{name} (plain: {plain_name}) is off by {off:.2g} of its largest element"
        )
