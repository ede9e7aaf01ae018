"""XLA's own scheduler on a CPU starts work early, and programs keep it from doing so.

Each test has one array that would be made long before it is read, and fails if that is so.
"""

from __future__ import annotations

import itertools

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.backends import CPU, GPU, TPU, tracing_for
from keras_recompute.engine import build, target_now, trace
from keras_recompute.engine.emit.early_work import ports_with_early_work
from keras_recompute.engine.graph.dataflow import operations_before
from keras_recompute.graph_traversal import reachable
from keras_recompute.liveness import profile
from tests.oracles.conditioned_blocks import conditioned

L = keras.layers


def temporaries(model, *shapes, optimizer="sgd"):
    model.compile(optimizer, "mse", jit_compile=True)
    specs = [tf.TensorSpec(shape) for shape in shapes]
    return profile(model, *specs).allocated_temporary_bytes


def transformer(blocks, steps, width):
    x = inputs = keras.Input((steps, width))
    names = []
    for number in range(blocks):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(4, width // 4)(y, y)])
        y = L.Dense(width)(L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x)))
        names.append(f"block_{number}")
        x = L.Add(name=names[-1])([x, y])
    return keras.Model(inputs, L.Dense(1)(x)), names


@pytest.mark.long
def test_a_softmax_is_made_again_when_its_gradient_is_there():
    batch, steps, width = 2, 128, 32
    plain, names = transformer(4, steps, width)
    model = kr.checkpointed(plain, at=[names[1]])
    scores = 4 * batch * steps * steps * 4
    needed = temporaries(model, (batch, steps, width), (batch, steps, 1))
    # Of two blocks the scores, of one the softmax and its gradient; 16 widths of other values.
    assert needed <= 4.5 * scores + 2 * 16 * batch * steps * width * 4


def test_weights_of_the_last_section_are_not_copied_for_their_update():
    width, batch = 256, 32
    x = inputs = keras.Input((width,))
    for _ in range(8):
        x = L.Dense(width, activation="gelu")(x)
    model = kr.checkpointed(keras.Model(inputs, L.Dense(1)(x)), every=4)
    kernel, activation = width * width * 4, batch * width * 4
    # Four gradients of a section, and activations that are left by then.
    assert temporaries(model, (batch, width), (batch, 1)) <= 4 * kernel + 4 * activation


def test_kernels_of_the_last_section_are_neither_copied_nor_flipped_early():
    channels, side, batch = 64, 4, 1
    x = inputs = keras.Input((side, side, channels))
    for _ in range(6):
        x = L.Conv2D(channels, 3, padding="same", activation="relu")(x)
    model = kr.checkpointed(keras.Model(inputs, x), every=3)
    kernel, image = 9 * channels * channels * 4, batch * side * side * channels * 4
    needed = temporaries(model, (batch, side, side, channels), (batch, side, side, channels))
    # A section's three gradients, one of them also as the convolution made it.
    assert needed <= 4 * kernel + 20 * image


def test_an_lstm_reads_its_inputs_for_the_gradient_of_weights_behind_the_loop():
    batch, steps, units = 8, 64, 32
    x = inputs = keras.Input((steps, units), batch_size=batch)
    for _ in range(2):
        x = kr.LSTM(units, return_sequences=True)(x)
    model = keras.Model(inputs, L.Dense(1)(x))
    sequence = batch * steps * units * 4
    # Of two layers four gates, outputs and cells; one gradient of outputs.
    needed = temporaries(model, (batch, steps, units), (batch, steps, 1))
    assert needed <= 14 * sequence


def by_functions(plain, names):
    """Return the model's training step with each block as a checkpointed function."""
    blocks = [kr.checkpoint(plain.get_layer(name)) for name in names]

    @tf.function(jit_compile=True, autograph=False)
    def step(inputs, _):
        condition, x = inputs
        with tf.GradientTape() as tape:
            for block in blocks:
                # What is between two blocks follows from the first.
                x = block([x + 1.0, condition])
            loss = tf.reduce_mean(x**2)
        weights = [v.value for v in plain.trainable_variables]
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(gradient)
        return loss

    return step


def by_sections(plain, names):
    model = kr.checkpointed(plain, at=names[:-1])
    model.compile("sgd", "mse", jit_compile=True)
    return model


def by_layers(plain, _):
    model = kr.checkpointed(plain, layers="block_*")
    model.compile("sgd", "mse", jit_compile=True)
    return model


def _is_small(tensor):
    return tf.reduce_sum(tensor) < 1.0


@pytest.mark.parametrize(
    "recomputed", [by_sections, by_layers, by_functions], ids=["sections", "layers", "functions"]
)
def test_no_call_reads_older_values_while_the_one_before_runs(recomputed):
    blocks, rows, width, wide = 12, 512, 16, 256
    step = recomputed(*conditioned(blocks, width, wide))
    shape = tf.TensorSpec((rows, width))
    needed = profile(step, [shape, shape], shape).allocated_temporary_bytes
    # Of one block the wide array, beside the narrow one, and their gradient; of all blocks the
    # narrow array; kernels. With the wide arrays of all blocks at once it would be 13.
    assert needed <= (3 + blocks * width / wide + 0.5) * rows * wide * 4


@pytest.mark.parametrize(
    ("function", "is_early"),
    [
        (lambda x, old: x + old @ tf.ones((4, 4)), True),
        (lambda x, old: x + tf.transpose(old[:, :2]) @ tf.ones((3, 4)), True),
        (lambda x, old: x + tf.while_loop(_is_small, lambda t: t + t, [old])[0], True),
        (lambda x, old: x + old @ tf.ones((4, 1)), False),  # smaller than what it reads
        (lambda x, old: (x + old) @ tf.ones((4, 4)), False),
        (lambda x, old: x + old * 2.0, False),  # arithmetic is repeated where it is read
    ],
    ids=["product", "of-a-part", "loop", "small", "of-both", "arithmetic"],
)
def test_early_work_is_a_product_of_older_values_alone(function, is_early):
    specs = [tf.TensorSpec((1, 4)), tf.TensorSpec((3, 4))]
    program = build(trace(function, specs, target_now()), policy=None).forward
    assert ports_with_early_work(program, [1], [0]) == [1] * is_early


def test_without_xla_a_call_waits_for_the_one_before_too():
    plain, names = conditioned(3, 2, 8)
    model = kr.checkpointed(plain, at=names[:-1])
    inputs = [tf.ones((4, 2)), tf.ones((4, 2))]
    write = tf.function(lambda: model(inputs, training=True), autograph=False)
    graph = write.get_concrete_function().graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    sections = ["forward.section-0/", "forward.section-1/", "forward.end/"]
    for before, section in itertools.pairwise(sections):
        in_section = [op for op in products if section in op.name]
        assert in_section
        for product in in_section:
            earlier = reachable([product], operations_before)
            assert any(before in op.name for op in earlier), product.name


@pytest.mark.parametrize(("backend", "barriers"), [(GPU, 2), (TPU, 0), (CPU, 0)])
def test_on_a_gpu_early_products_stand_behind_a_barrier(backend, barriers):
    plain, names = conditioned(3, 2, 8)
    model = kr.checkpointed(plain, at=names[:-1])
    inputs = [tf.ones((4, 2)), tf.ones((4, 2))]
    with tracing_for(backend):
        write = tf.function(lambda: model(inputs, training=True), jit_compile=True, autograph=False)
        operations = write.get_concrete_function().graph.get_operations()
    # One for each section but the first.
    assert sum(op.type == "XlaOptimizationBarrier" for op in operations) == barriers


@pytest.mark.parametrize(
    ("layer", "sequences"),
    [
        # The gradient of four gates, the inputs as the product reads them, and the outputs.
        (kr.LSTM(32, return_sequences=True), 4 + 2 + 1),
        # Gradients of two gates, of the candidate and of its product, inputs and outputs.
        (kr.GRU(32, return_sequences=True), 2 + 1 + 1 + 2 + 1),
        # While the loop runs: two gates and the candidate, twice; the outputs, the states before
        # each step, and these as they are reset.
        (kr.GRU(32, return_sequences=True, reset_after=False), 2 * 2 + 1 + 1 + 1 + 1),
    ],
    ids=["lstm", "gru", "gru-reset-before"],
)
def test_kernels_of_a_recurrent_layer_get_their_gradients_one_after_the_other(layer, sequences):
    batch, steps, features = 8, 256, 64
    inputs = keras.Input((steps, features), batch_size=batch)
    model = keras.Model(inputs, L.Dense(1)(layer(inputs)))
    sequence = batch * steps * layer.units * 4
    # Both at once take the previous states too, and in a GRU the inputs twice.
    needed = temporaries(model, (batch, steps, features), (batch, steps, 1))
    assert needed <= (sequences + 0.25) * sequence


def convolutions(count, activation, side, channels):
    x = inputs = keras.Input((side, side, channels))
    for number in range(count):
        x = L.Conv2D(channels, 1, activation=activation, name=f"conv_{number}")(x)
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


def test_activations_of_the_last_section_are_made_again_when_their_gradient_is_there():
    count, batch, side, channels = 8, 4, 16, 64
    plain = convolutions(count, "gelu", side, channels)
    model = kr.checkpointed(plain, at=["conv_1"])
    value = batch * side * side * channels * 4
    # What six convolutions made, what the section begins with, and two values of one layer. Made
    # early, a value of each layer would be added.
    assert temporaries(model, (batch, side, side, channels), (batch, 1)) <= 9.5 * value


def test_a_silu_behind_the_last_checkpoint_needs_no_branch():
    batch, side, channels = 4, 16, 64
    model = kr.checkpointed(convolutions(8, "silu", side, channels), at=["conv_1"])
    value = batch * side * side * channels * 4
    # A branch holds to its end what six convolutions made, and takes 19.0 values.
    assert temporaries(model, (batch, side, side, channels), (batch, 1)) <= 17 * value


def test_a_section_s_result_is_kept_once():
    count, batch, side, channels = 8, 4, 16, 64
    plain = convolutions(count, "relu", side, channels)
    model = kr.checkpointed(plain, at=[f"conv_{n}" for n in range(count - 1)])
    value = batch * side * side * channels * 4
    # The result of each convolution before its activation would be kept beside that behind it.
    assert temporaries(model, (batch, side, side, channels), (batch, 1)) <= (count + 3.5) * value


# Weights outweigh activations here, of which the model warns.
@pytest.mark.filterwarnings("ignore:.*save next to nothing")
def test_kernels_larger_than_images_are_flipped_one_section_at_a_time():
    count, channels = 8, 128
    x = inputs = keras.Input((2, 2, channels))
    for _ in range(count):
        x = L.Conv2D(channels, 3, padding="same", activation="relu")(x)
    model = kr.checkpointed(keras.Model(inputs, x), every=2)
    kernel = 3 * 3 * channels * channels * 4
    image = (1, 2, 2, channels)
    # The gradients of a section's two kernels, and one that is flipped. XLA flipped all eight.
    assert temporaries(model, image, image) <= 3.5 * kernel
