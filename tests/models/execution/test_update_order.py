"""Updates in the backward pass give the same weights and hold one section's gradients at a time."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.engine.graph.dataflow import operations_before
from keras_recompute.graph_traversal import reachable
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close

L = keras.layers
WIDTH, BATCH = 256, 16
JIT = pytest.mark.parametrize(
    "jit",
    [False, pytest.param(True, marks=pytest.mark.long(every_case=True))],
    ids=["graph", "jit"],
)


def chain(every=0, layers=8):
    x = inputs = keras.Input((WIDTH,))
    for _ in range(layers):
        x = L.Dense(WIDTH, activation="gelu")(x)
    outputs = L.Dense(1)(x)
    model = keras.Model(inputs, outputs)
    return kr.checkpointed(model, every=every) if every else model


def temporaries(model, optimizer):
    model.compile(optimizer, "mse", jit_compile=True)
    program = profile(model, tf.TensorSpec((BATCH, WIDTH)), tf.TensorSpec((BATCH, 1)))
    return program.allocated_temporary_bytes


@pytest.mark.parametrize(
    "optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.long(every_case=True))]
)
def test_the_gradients_of_one_section_are_alive_at_a_time(optimizer):
    kernel = WIDTH * WIDTH * 4
    activation = BATCH * WIDTH * 4
    # Two kernels' gradients of a section, what a product of few rows copies of its two kernels, and
    # activations; all gradients are eight kernels.
    assert temporaries(chain(every=2), optimizer) <= 5 * kernel + 16 * activation


def test_a_norm_of_all_gradients_keeps_them_until_the_end():
    kernel = WIDTH * WIDTH * 4
    clipped = keras.optimizers.SGD(global_clipnorm=1.0)
    assert temporaries(chain(every=2), clipped) >= 8 * kernel


def step_of(model, optimizer, around):
    """A training step written by hand, inside the context manager ``around()``."""
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with around():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def updated_before(step, model, layer):
    """Return the weights whose update the gradient of the kernel of ``layer`` waits for."""
    specs = tf.TensorSpec((BATCH, WIDTH)), tf.TensorSpec((BATCH, 1))
    graph = tf.function(step, autograph=False).get_concrete_function(*specs).graph
    names = {graph.capture(v.value.handle).name: v.path for v in model.trainable_variables}
    assigned = {
        op: names.get(op.inputs[0].name)
        for op in graph.get_operations()
        if op.type.startswith("Assign")
    }
    (last,) = (op for op, path in assigned.items() if path == f"{layer}/kernel")
    before = set(reachable([last], operations_before)) - {last}
    return {path for op, path in assigned.items() if op in before and path}


def fit_step(model, optimizer):
    model.compile(optimizer, "mse")
    return lambda x, y: model.train_step((x, y))


@pytest.mark.parametrize("is_fit", [True, False], ids=["fit", "custom loop"])
def test_a_section_waits_for_the_updates_of_those_behind_it(is_fit):
    model, optimizer = chain(every=2, layers=6), keras.optimizers.SGD()
    first, *_, last = (layer.name for layer in model.layers if isinstance(layer, L.Dense))
    step = (
        fit_step(model, optimizer) if is_fit else step_of(model, optimizer, kr.updates_in_backward)
    )
    waited_for = updated_before(step, model, first)
    behind = {v.path for v in model.trainable_variables}
    of_its_own_section = {v.path for layer in model.layers[1:3] for v in layer.weights}
    assert behind - of_its_own_section == waited_for, f"{last} is not updated before {first}"


class Tied(L.Layer):
    """Scores by the table of an embedding, whose gradient then comes from two sections."""

    def __init__(self, table, **kwargs):
        super().__init__(**kwargs)
        self.table = table

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))


def branched(every):
    """Shared, frozen and normalised layers, an embedding that is read twice, and an unused head."""
    ids = keras.Input((6,), dtype="int32")
    table, shared = L.Embedding(7, 8), L.Dense(8, activation="tanh")
    frozen = L.Dense(8, activation="tanh")
    x = table(ids)
    for _ in range(2):
        x = shared(L.Dense(8, activation="gelu")(x))
        x = L.BatchNormalization()(L.Dense(8, use_bias=False)(x))  # a bias there has no gradient
    x = frozen(x)
    frozen.trainable = False
    x = L.Dense(8, activation="gelu")(shared(x))
    outputs = {"scores": Tied(table)(x), "unused": L.Dense(2)(x)}
    model = keras.Model(ids, outputs)
    return kr.checkpointed(model, every=every) if every else model


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw-average": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "lion": lambda: keras.optimizers.Lion(0.001),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "clip by value": lambda: keras.optimizers.Adam(0.01, clipvalue=0.01),
    "clip each norm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clip all norms": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}


NAMES = [
    "adam",
    *(pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS if name != "adam"),
]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of the head without a loss
@JIT
@pytest.mark.parametrize("name", NAMES)
def test_five_updates_are_those_of_the_plain_model(name, jit):
    random = np.random.default_rng(0)
    ids = random.integers(0, 7, (4, 6)).astype("int32")
    targets = random.integers(0, 7, (4, 6)).astype("int32")
    weights = []
    for every in (0, 2):
        keras.utils.set_random_seed(0)
        model = branched(every)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        losses = {"scores": loss, "unused": None}
        model.compile(OPTIMIZERS[name](), losses, jit_compile=jit)
        data = ids, {"scores": targets, "unused": np.zeros((4, 6, 2), "float32")}
        for _ in range(5):
            model.train_on_batch(*data)
        weights.append([*model.get_weights(), *map(np.array, model.optimizer.variables)])
    for plain, ours in zip(*weights):
        np.testing.assert_allclose(ours, plain, rtol=2e-4, atol=2e-6)


@JIT
def test_two_tapes_in_one_step_update_in_their_order(jit):
    """The second loss reads weights that the first update changed, as in a GAN."""
    x, y = np.ones((4, WIDTH), "float32"), np.zeros((4, 1), "float32")
    found = []
    for every in (0, 2):
        keras.utils.set_random_seed(0)
        model, optimizer = chain(every, layers=4), keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=jit)
        def step(x, y, model=model, optimizer=optimizer):
            losses = []
            with kr.updates_in_backward():
                for _ in range(2):
                    with tf.GradientTape() as tape:
                        losses.append(tf.reduce_mean((model(x, training=True) - y) ** 2))
                    gradients = tape.gradient(losses[-1], model.trainable_variables)
                    optimizer.apply(gradients, model.trainable_variables)
            return losses

        losses = [float(loss) for _ in range(2) for loss in step(x, y)]
        assert losses[1] != losses[0]
        found.append((losses, model.get_weights()))
    (plain_losses, plain), (losses, ours) = found
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    assert_all_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_in_eager_code_it_does_nothing():
    with kr.updates_in_backward():
        assert float(tf.square(3.0)) == 9.0


def test_an_error_inside_leaves_no_trace():
    @tf.function
    def step(x):
        try:
            with kr.updates_in_backward():
                raise KeyError("a layer's own")
        except KeyError:
            pass
        with kr.updates_in_backward():
            return x + 1.0

    assert float(step(tf.constant(1.0))) == 2.0
