"""Zeros and masks are made by the compiled program alone, not by TensorFlow before it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.graph.target_ops import zeros, zeros_like
from keras_recompute.engine.passes import target_now
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close, gradient_step

LARGE = 4096  # elements


def needed(nodes, results):
    """Return those of ``nodes`` that ``results`` are computed from, which are all that TensorFlow
    keeps.
    """
    by_name, names = {node.name: node for node in nodes}, list(results)
    found = {}
    while names:
        name = names.pop().lstrip("^").split(":")[0]
        if name in by_name and name not in found:
            found[name] = by_name[name]
            names.extend(by_name[name].input)
    return found.values()


def nodes_that_run(graph):
    """Return the nodes of ``graph`` and of all functions that it calls, directly or through one
    another.
    """
    definition = graph.as_graph_def(add_shapes=True)
    nodes = list(needed(definition.node, [t.op.name for t in graph.outputs]))
    for function in definition.library.function:
        nodes += needed(function.node_def, [*function.ret.values(), *function.control_ret.values()])
    return nodes


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
@pytest.mark.parametrize("shape", [(), (3,), (64, 64), (2, 64, 64), (0, 8192)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32], ids=lambda d: d.name)
def test_zeros_are_zeros(shape, dtype, jit):
    @tf.function(jit_compile=jit, autograph=False)
    def made(x):
        return zeros(shape, dtype, target_now()), zeros_like(x, target_now())

    for found in made(tf.ones(shape, dtype)):
        assert (found.shape, found.dtype) == (shape, dtype)
        np.testing.assert_array_equal(tf.cast(found, tf.float32), np.zeros(shape))


def test_a_dimension_may_be_known_only_later():
    @tf.function(jit_compile=True, autograph=False, input_signature=[tf.TensorSpec([None, 64])])
    def made(x):
        return zeros([tf.shape(x)[0], 64], x.dtype, target_now()) + x

    assert made(tf.ones([128, 64])).shape == (128, 64)


def recurrent(x):
    for _ in range(3):
        x = kr.LSTM(16, return_sequences=True)(x)
        x = kr.RecomputationCheckpoint()(x)
    return kr.GRU(16)(x)


def attentive(x):
    for _ in range(3):
        y = kr.MultiHeadAttention(2, 8)(x, x)
        x = keras.layers.Dense(16)(keras.layers.Dense(64, activation="gelu")(x + y))
        x = kr.RecomputationCheckpoint()(x)
    return keras.layers.Dense(16)(x)


@pytest.mark.parametrize("layers", [recurrent, attentive])
@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.long)])
def test_tensorflow_makes_no_large_zeros_before_xla_compiles(layers, scan_layers):
    inputs = keras.Input((64, 16), batch_size=16)
    model = kr.Model(inputs, layers(inputs))
    model.scan_layers = scan_layers

    step = tf.function(gradient_step(model), jit_compile=True, autograph=False)
    large = [
        (node.name, node.op)
        for node in nodes_that_run(step.get_concrete_function(tf.TensorSpec([16, 64, 16])).graph)
        if node.op in ("Fill", "ZerosLike", "BroadcastTo", "Const")
        for shape in node.attr["_output_shapes"].list.shape
        if np.prod([d.size for d in shape.dim]) >= LARGE
    ]
    assert not large, "TensorFlow computes these before it compiles, and keeps them"


def causal():
    position = keras.ops.arange(32)
    return keras.ops.expand_dims(position[:, None] >= position, 0)


class Masked(keras.layers.Layer):
    """Multiplies by a mask that reads no input, as large as what it is given: ``made`` of its
    shape.
    """

    def __init__(self, made, **options):
        super().__init__(**options)
        self.made = made

    def call(self, x):
        return keras.ops.tanh(x * keras.ops.cast(self.made(x.shape), x.dtype))


@pytest.mark.parametrize(
    "made",
    [
        lambda shape: keras.ops.broadcast_to(causal(), shape),
        pytest.param(
            lambda shape: keras.ops.tile(causal(), (shape[0], 1, 1)), marks=pytest.mark.long
        ),
        pytest.param(
            lambda shape: keras.ops.broadcast_to(keras.ops.convert_to_tensor(2.0), shape),
            marks=pytest.mark.long,
        ),
    ],
    ids=["broadcast", "tiled", "number"],
)
def test_a_mask_is_no_constant_of_every_section(made):
    x = inputs = keras.Input((32, 32), batch_size=8)
    for number in range(4):
        x = Masked(made, name=f"masked_{number}")(keras.layers.Dense(32)(x))
    plain = keras.Model(inputs, x)
    model = kr.checkpointed(plain, at=["masked_0", "masked_1", "masked_2"])
    step = gradient_step(model, weights=[v.value for v in plain.trainable_variables])
    program = profile(step, tf.TensorSpec(inputs.shape), input_feed=["x"])
    # The weights, and numbers.
    assert program.always_live_bytes <= sum(v.numpy().nbytes for v in plain.weights) + 1024
    images = tf.constant(np.random.default_rng(0).normal(size=inputs.shape).astype("float32"))
    assert_all_close(
        tf.function(step, jit_compile=True)(images),
        gradient_step(plain)(images),
        rtol=1e-4,
        atol=1e-4,
    )
