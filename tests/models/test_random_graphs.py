"""Any functional graph with checkpoints anywhere has the numbers of its plain twin.

A longer search: ``KERAS_RECOMPUTE_EXAMPLES=500 python3 -m pytest tests/models/test_random_graphs.py``.
"""

from __future__ import annotations

import os
import warnings

import keras
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_recompute.errors import RecomputeWarning

from .networks import mark, numbers
from .twins import assert_agree, training_pass, twins

EXAMPLES = int(os.environ.get("KERAS_RECOMPUTE_EXAMPLES", "25"))
WIDTH = 3
SHARED = 2  # layers that may be called several times

# One step of a recipe: what is done, to which of the values made so far (counted from the latest), and whether it is marked.
STEPS = st.tuples(
    st.sampled_from(["dense", "shared 0", "shared 1", "tanh", "add", "multiply", "dropout", "norm", "square"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)
RECIPES = st.tuples(
    st.lists(STEPS, min_size=1, max_size=9), st.integers(1, 2), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
)


def build(recipe, Model):
    steps, n_inputs, output_numbers = recipe
    inputs = [keras.Input((WIDTH,)) for _ in range(n_inputs)]
    shared = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(SHARED)]
    made = list(inputs)
    for number, (kind, first, second, is_marked) in enumerate(steps):
        a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
        if kind == "dense":
            value = keras.layers.Dense(WIDTH)(a)
        elif kind.startswith("shared"):
            value = shared[int(kind[-1])](a)
        elif kind == "tanh":
            value = keras.layers.Activation("tanh")(a)
        elif kind == "dropout":
            value = keras.layers.Dropout(0.5, seed=number)(a)
        elif kind == "norm":
            value = keras.layers.BatchNormalization()(a)
        elif kind == "square":
            value = keras.ops.square(a) * 0.5
        else:
            value = {"add": keras.layers.Add, "multiply": keras.layers.Multiply}[kind]()([a, b])
        made.append(mark(value) if is_marked else value)
    # a weight behind everything, so that there is something to differentiate
    outputs = [keras.layers.Dense(2)(made[-1]), *(made[-1 - n % len(made)] for n in output_numbers)]
    return Model(inputs, outputs)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 25, suppress_health_check=list(HealthCheck))
@given(RECIPES)
def test_a_random_graph_agrees_with_its_plain_twin(recipe):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)  # many of these checkpoints save nothing, as they should say
        ours, plain = twins(lambda Model: build(recipe, Model))
    arrays = [numbers(5, WIDTH, seed=n) for n in range(recipe[1])]
    assert_agree(training_pass(ours, arrays, mode="graph"), training_pass(plain, arrays, mode="graph"), 1e-4)
