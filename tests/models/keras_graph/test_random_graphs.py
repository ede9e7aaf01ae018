"""Any functional graph, with checkpoints anywhere and under any policy, has the numbers of its
plain twin.

A longer search: ``KERAS_RECOMPUTE_EXAMPLES=5000 python3 -m pytest
tests/models/keras_graph/test_random_graphs.py``.
"""

from __future__ import annotations

import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keras_recompute import policies
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.errors import RecomputeWarning
from keras_recompute.layers.recurrent import GRU, LSTM
from keras_recompute.models.classes.model import Model

from ..networks import mark, numbers
from ..same_training import assert_agree, training_pass

CI_EXAMPLES = 25
EXAMPLES = int(os.environ.get("KERAS_RECOMPUTE_EXAMPLES", CI_EXAMPLES))
BATCH, TIME, WIDTH, WORDS = 2, 4, 3, 5
SHARED = 2  # layers that may be called several times

layers = keras.layers


class Named(layers.Layer):
    """Marks a value with a name for policies. Without a policy it does nothing."""

    def call(self, x):
        return checkpoint_name(x, "named")


def convolution_of_images(x):
    """Each sequence as an image of one channel."""
    x = layers.Conv2D(2, 2, padding="same", activation="tanh")(layers.Reshape((TIME, WIDTH, 1))(x))
    return layers.Reshape((TIME, WIDTH))(layers.Conv2D(1, 1)(x))


# From one value (batch, time, width), or two, to another; and a seed for what draws random numbers.
LAYERS = {
    "dense": lambda a, _b, _s: layers.Dense(WIDTH, activation="tanh")(a),
    "conv1d": lambda a, _b, _s: layers.Conv1D(WIDTH, 2, padding="causal")(a),
    "conv2d": lambda a, _b, _s: convolution_of_images(a),
    "lstm": lambda a, _b, _s: layers.LSTM(WIDTH, return_sequences=True)(a),
    "gru": lambda a, _b, _s: layers.GRU(WIDTH, return_sequences=True)(a),
    "fused lstm": lambda a, _b, _s: LSTM(WIDTH, return_sequences=True)(a),
    "fused gru": lambda a, _b, _s: GRU(WIDTH, return_sequences=True)(a),
    "layer norm": lambda a, _b, _s: layers.LayerNormalization(epsilon=0.1)(a),
    "batch norm": lambda a, _b, _s: layers.BatchNormalization(epsilon=0.1)(a),
    "dropout": lambda a, _b, s: layers.Dropout(0.5, seed=s)(a),
    "spatial dropout": lambda a, _b, s: layers.SpatialDropout1D(0.5, seed=s)(a),
    "attention": lambda a, b, s: layers.MultiHeadAttention(1, 2, dropout=0.2, seed=s)(a, b),
    "add": lambda a, b, _s: layers.Add()([a, b]),
    "concatenate": lambda a, b, _s: layers.Dense(WIDTH)(layers.Concatenate()([a, b])),
    "square": lambda a, _b, _s: keras.ops.square(a) * 0.5,
    "name": lambda a, _b, _s: Named()(a),
}
# Recurrent layers and attention are traced for long, so the others come eight times as often.
SLOW = ("lstm", "gru", "fused lstm", "fused gru", "attention")
KINDS = [
    *SLOW,
    *8 * [kind for kind in LAYERS if kind not in SLOW],
    *3 * [f"shared {n}" for n in range(SHARED)],
]
# One step of a recipe: what is done, to which of the values made so far (counted from the latest),
# and whether it is marked.
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3), st.booleans())
# From 3 to 12 layers, more often few: tracing is what takes the time.
LENGTHS = st.sampled_from([*[3] * 10, *[4] * 4, 5, 6, 8, 12])
# The steps, whether the sequences come as words, and which values are returned beside the last one.
RECIPES = st.tuples(
    LENGTHS.flatmap(lambda n: st.lists(STEPS, min_size=n, max_size=n)),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=2, unique=True),
)
POLICIES = {
    "none": None,
    "nothing": policies.save_nothing,
    "everything": policies.save_everything,
    "matmuls": policies.save_matmuls,
    "matmuls without batch dims": policies.save_matmuls_without_batch_dims,
    "names": policies.save_names("named"),
    "all but names": policies.save_all_but_names("named"),
    "either": policies.either(policies.save_names("named"), policies.save_matmuls),
    "every other": lambda value: len(value.op.name) % 2 == 0,
}
BY_NAME = ("names", "all but names", "either")  # a name that no value has is an error
# Compiling takes seconds, and eager code runs the same programs: most examples are graphs.
MODES = st.sampled_from(["graph"] * 70 + ["eager"] * 9 + ["jit"])


def build(recipe, model_class):
    steps, of_words, output_numbers = recipe
    inputs = keras.Input((TIME,), dtype="int32") if of_words else keras.Input((TIME, WIDTH))
    shared = [layers.Dense(WIDTH, activation="tanh") for _ in range(SHARED)]
    made = [layers.Embedding(WORDS, WIDTH)(inputs) if of_words else inputs]
    for number, (kind, first, second, is_marked) in enumerate(steps):
        a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
        value = (
            shared[int(kind[-1])](a) if kind.startswith("shared") else LAYERS[kind](a, b, number)
        )
        made.append(mark(value) if is_marked else value)
    # a weight behind everything, so that there is something to differentiate
    return model_class(
        inputs, [layers.Dense(2)(made[-1]), *(made[-1 - n % len(made)] for n in output_numbers)]
    )


@pytest.fixture(autouse=True)
def _unoptimised():
    """Each graph runs once: optimising it takes longer than all else."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


@pytest.mark.long
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == CI_EXAMPLES,
    database=None,
    phases=[Phase.generate]
    if EXAMPLES == CI_EXAMPLES
    else tuple(Phase),  # shrinking takes longer than all examples
    suppress_health_check=list(HealthCheck),
)
@given(RECIPES, st.sampled_from([*["none"] * len(POLICIES), *POLICIES]), MODES)
def test_a_random_graph_agrees_with_its_plain_twin(recipe, policy, mode):
    x = (
        np.arange(BATCH * TIME).reshape(BATCH, TIME) % WORDS
        if recipe[1]
        else numbers(BATCH, TIME, WIDTH)
    )
    # The twins share their layers, because to make them takes longer than all else. So state is put
    # back in between.
    plain = build(recipe, keras.Model)
    for v in plain.trainable_variables:
        v.assign(v + 0.1 * np.cos(np.arange(np.prod(v.shape))).reshape(v.shape))  # no bias is zero
    before = [v.numpy() for v in plain.variables]
    # Compiled programs draw other random numbers, so then both are compiled. Norms magnify the last
    # digit, and leave nothing but that of the gradient of a bias in front of them: 1.2e-4 on a
    # processor that rounds otherwise.
    expected = training_pass(plain, [x], mode="jit" if mode == "jit" else "eager")
    for v, value in zip(plain.variables, before, strict=True):
        v.assign(value)
    with warnings.catch_warnings():
        # Many of these checkpoints save nothing, as they should say.
        warnings.simplefilter("ignore", RecomputeWarning)
        ours = Model(plain.inputs, plain.outputs)
        if POLICIES[policy] is not None:
            has_names = any(isinstance(layer, Named) for layer in ours.layers)
            ours = checkpoint(
                ours, policy=POLICIES[policy if has_names or policy not in BY_NAME else "matmuls"]
            )
        found = training_pass(ours, [x], mode=mode)
    assert_agree(found, expected, 3e-4, least_scale=0.1)
