"""Weights after updates by each of Keras's optimizers: heads without a loss, embeddings, tied and
frozen weights.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from tests.oracle import COMPILE_OPTIONS, assert_all_close

L = keras.layers
IDS = np.random.default_rng(0).integers(0, 12, (8, 5))  # rows are gathered several times
TARGETS = {name: np.random.default_rng(n).random((8, 2)) for n, name in enumerate("abc")}

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.05),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.05),
    "clipped": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.5),
    "averaged": lambda: keras.optimizers.AdamW(0.05, use_ema=True, ema_momentum=0.9),
    "accumulated": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
}


class TiedOutput(L.Layer):
    """Scores of all rows of an embedding that is used in front, too."""

    def __init__(self, embedding, **options):
        super().__init__(**options)
        self.embedding = embedding

    def call(self, x):
        return x @ keras.ops.transpose(keras.ops.convert_to_tensor(self.embedding.embeddings))


def network():
    """A trunk with an embedding that is used twice, and three heads, the last of which has two
    layers.
    """
    keras.utils.set_random_seed(1)
    ids = keras.Input((5,), dtype="int32", name="ids")
    embedding = L.Embedding(12, 6, name="embedding")
    x = embedding(ids) + keras.ops.flip(embedding(ids), axis=1)
    x = L.Dense(6, "tanh", name="dense_0")(x)
    x = L.Dense(6, "gelu", name="frozen", trainable=False)(x)
    x = L.LayerNormalization(name="norm")(x)
    hidden = L.Dense(6, "tanh", name="dense_1")(L.GlobalAveragePooling1D(name="pool")(x))
    hidden_c = L.Dense(6, "tanh", name="dense_c")(hidden)
    outputs = {
        "a": L.Dense(2, name="a")(hidden),
        "b": L.Dense(2, name="b")(hidden),
        "c": L.Dense(2, name="c")(hidden_c),
    }
    return keras.Model(ids, outputs, name="heads")


def tied_network():
    keras.utils.set_random_seed(2)
    ids = keras.Input((5,), dtype="int32", name="ids")
    embedding = L.Embedding(12, 6, name="embedding")
    x = L.Dense(6, "tanh", name="dense_0")(embedding(ids))
    x = L.Dense(6, "tanh", name="dense_1")(x)
    scores = TiedOutput(embedding, name="tied")(x)
    pooled = L.GlobalAveragePooling1D(name="pool")(scores)
    heads = {name: L.Dense(2, name=name)(pooled) for name in "abc"}
    return keras.Model(ids, heads, name="tied_model")


WRAPS = {
    "every": lambda m: kr.checkpointed(m, every=3),
    "at": lambda m: kr.checkpointed(m, at=["dense_0", "dense_1"]),
    "layers": lambda m: kr.checkpointed(m, layers=[L.Dense, L.Embedding]),
}
LOSSES = {"one": ["a"], "two": ["a", "c"]}


def weights_after(make, wrap, optimizer, *, losses=("a",), mode="graph", updates=3):
    model = wrap(make())
    model.compile(
        OPTIMIZERS[optimizer](),
        loss={name: "mse" if name in losses else None for name in TARGETS},
        **COMPILE_OPTIONS[mode],
    )
    for _ in range(updates):
        model.train_on_batch(IDS, TARGETS)
    weights = {w.path: w.numpy() for w in model.weights}
    return {path.removeprefix(f"{model.name}/"): value for path, value in weights.items()}


def assert_same_weights(ours, plain, atol):
    assert ours.keys() == plain.keys()
    off = {path: float(np.abs(ours[path] - plain[path]).max()) for path in plain}
    assert max(off.values()) <= atol, f"weights differ from plain Keras's: {off}"


# Keras warns of variables without gradients; the plain model and ours do so alike, which another
# test holds.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Gradients do not exist", "ignore::keras_recompute.errors.RecomputeWarning"
)


def some(names, quick):
    """Return parameters, those that are not among the ``quick`` ones for the long tests."""
    marks = {True: (), False: pytest.mark.long}
    return [pytest.param(name, marks=marks[name in quick]) for name in names]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_makes_the_same_weights(optimizer):
    def run(wrap):
        return weights_after(network, wrap, optimizer)

    plain = run(lambda m: m)
    for wrap in WRAPS.values():
        assert_same_weights(run(wrap), plain, 2e-6)


@pytest.mark.parametrize("wrap", some(WRAPS, quick=["at"]))
@pytest.mark.parametrize("mode", some(["eager", "jit"], quick=["eager"]))
@pytest.mark.parametrize("losses", some(LOSSES, quick=["one"]))
def test_eagerly_and_under_jit(losses, mode, wrap):
    asked = {"losses": LOSSES[losses], "mode": mode, "updates": 2}
    plain = weights_after(network, lambda m: m, "adamw", **asked)
    ours = weights_after(network, WRAPS[wrap], "adamw", **asked)
    assert_same_weights(ours, plain, 2e-6 if mode == "eager" else 2e-5)
    start = {w.path: w.numpy() for w in network().weights}
    # Decay moves weights that have a gradient alone.
    np.testing.assert_array_equal(ours["b/kernel"], start["b/kernel"])


@pytest.mark.parametrize("mode", some(["eager", "graph", "jit"], quick=["graph"]))
def test_an_embedding_that_is_the_output_too(mode):
    plain = weights_after(tied_network, lambda m: m, "adam", mode=mode)
    ours = weights_after(tied_network, WRAPS["at"], "adam", mode=mode)
    assert_same_weights(ours, plain, 2e-5 if mode == "jit" else 2e-6)


@pytest.mark.long
def test_keras_warns_of_the_variables_that_it_warns_of_without_checkpoints():
    warned = []
    for wrap in (lambda m: m, *WRAPS.values()):
        with pytest.warns(UserWarning, match="Gradients do not exist") as caught:
            weights_after(network, wrap, "adam", updates=1)
        warned.append({str(w.message) for w in caught if "Gradients do" in str(w.message)})
    assert all(each == warned[0] for each in warned)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_blocks_with_tables_of_their_own_are_no_loop_of_stacked_tables(mode):
    """A stack of tables has a dense gradient, with which Adam makes other weights."""

    def blocks():
        keras.utils.set_random_seed(3)
        ids = keras.Input((5,), dtype="int32")
        x = L.Embedding(12, 6, name="first")(ids)
        for n in range(4):
            x = L.Dense(6, "tanh", name=f"dense_{n}")(
                x + L.Embedding(12, 6, name=f"table_{n}")(ids)
            )
        pooled = L.GlobalAveragePooling1D()(x)
        return keras.Model(ids, {name: L.Dense(2, name=name)(pooled) for name in TARGETS})

    def scanned(model):
        model = kr.checkpointed(model, at=[f"dense_{n}" for n in range(4)])
        model.scan_layers = True
        return model

    plain = weights_after(blocks, lambda m: m, "adam", mode=mode)
    assert_same_weights(weights_after(blocks, scanned, "adam", mode=mode), plain, 2e-5)


@pytest.mark.long
def test_the_gradient_of_an_embedding_in_a_model_is_sparse():
    for wrap in (lambda m: m, *WRAPS.values()):
        model = wrap(network())
        embedding = model.get_layer("embedding").embeddings.value

        @tf.function
        def kind(ids, model=model, embedding=embedding):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(ids, training=True)["a"])
            gradient = tape.gradient(loss, embedding)
            assert isinstance(gradient, tf.IndexedSlices), type(gradient)
            return gradient.values

        assert kind(tf.constant(IDS)).shape == (2 * IDS.size, 6)


class LargestOf(L.Layer):
    """The numbers of the largest elements: rows that depend on what sections hand on."""

    def call(self, x):
        return tf.argmax(x, -1, output_type=tf.int32)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape[:-1], "int32")


def sharing_a_table(rows):
    """Eight equal sections that look up rows of one table: by the input, or by their own state."""
    keras.utils.set_random_seed(1)
    ids, x = inputs = keras.Input((5,), 8, dtype="int32"), keras.Input((5, 6), 8)
    table, dense, add, largest = L.Embedding(12, 6), L.Dense(6, "gelu"), L.Add(), LargestOf()
    for _ in range(8):
        found = table(ids if rows == "given" else largest(x))
        x = kr.RecomputationCheckpoint()(dense(add([x, found])))
    return inputs, L.Dense(2)(x)


@pytest.mark.parametrize("rows", ["given", pytest.param("of the state", marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", some(["eager", "graph", "jit"], quick=["graph"]))
def test_loops_in_each_other_keep_the_gradient_of_a_shared_table_sparse(mode, rows):
    def updated(model):
        model.compile(
            keras.optimizers.Adam(0.05),
            "mse",
            **COMPILE_OPTIONS[mode],
        )
        for _ in range(3):
            model.train_on_batch([IDS, np.ones((8, 5, 6))], np.ones((8, 5, 2)))
        return [weight.numpy() for weight in model.weights]

    ours = kr.Model(*sharing_a_table(rows))
    ours.recomputation_levels = 2
    plain = keras.Model(*sharing_a_table(rows))
    assert_all_close(updated(ours), updated(plain), rtol=0, atol=1e-5)

    table = ours.trainable_variables[0].value

    @tf.function(jit_compile=mode == "jit")
    def slices(ids, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ours([ids, x], training=True))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices), type(gradient)
        return gradient.values

    # Each of the eight sections has looked up 8 x 5 rows.
    assert slices(tf.constant(IDS, tf.int32), tf.ones((8, 5, 6))).shape == (8 * 8 * 5, 6)


@pytest.mark.long
def test_loops_in_each_other_that_share_a_table_save_memory():
    def temporary_bytes(levels):
        keras.utils.set_random_seed(1)
        ids, x = inputs = keras.Input((64,), 8, dtype="int32"), keras.Input((64, 32), 8)
        table, dense, add = L.Embedding(12, 32), L.Dense(32, "gelu"), L.Add()
        for _ in range(65):
            x = kr.RecomputationCheckpoint()(dense(add([x, table(ids)])))
        model = kr.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))
        model.recomputation_levels = levels
        variables = [variable.value for variable in model.trainable_variables]

        def step(ids, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model([ids, x], training=True))
            gradients = tape.gradient(loss, variables)
            return gradients[0].values, gradients[0].indices, gradients[1:]

        specs = tf.TensorSpec((8, 64), tf.int32), tf.TensorSpec((8, 64, 32))
        return profile(step, *specs).allocated_temporary_bytes

    # The results of 65 sections, of 64 KiB each, are kept at 5 x 13 places: 5 + 13 in place of 65.
    # Of the gradients of the rows, which are as large, those of 13 sections come once more.
    assert temporary_bytes(2) < temporary_bytes(1) - 30 * 64 * 2**10


@pytest.mark.parametrize(
    "mode",
    ["eager", "graph", pytest.param("jit", marks=pytest.mark.long(every_case=True))],
)
@pytest.mark.parametrize("with_loss", range(4))
def test_weights_of_a_loop_behind_the_last_loss_have_no_gradient(with_loss, mode):
    """A loop of isomorphic layers reads a stack of their weights, whose gradient is whole."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((6,), batch_size=2)
    made = []
    for _ in range(4):
        x = L.Dense(6, "tanh")(x)
        made.append(x)
    plain = keras.Model(inputs, made)
    ours = kr.checkpointed(plain, every=1)
    ours.scan_layers = True
    assert [len(step.sections) for step in ours.plan.steps if hasattr(step, "sections")] == [3]
    values = tf.random.stateless_normal((2, 6), (0, 1))

    def gradients(model):
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(values, training=True)
            losses = [tf.reduce_sum(output**2) for output in outputs]
        # One after the other: a backward pass leaves nothing behind for the next.
        wanted = losses[with_loss], losses[0], losses[with_loss]
        return [tape.gradient(loss, model.trainable_variables) for loss in wanted]

    def reached(found):
        return [[gradient is not None for gradient in each] for each in found]

    # A function of TensorFlow returns no None for a variable that is not there.
    step = COMPILE_OPTIONS[mode]
    structures = []
    for model in (ours, plain):
        function = lambda model=model: structures.append(reached(gradients(model)))  # noqa: E731
        if step.get("run_eagerly"):
            function()
        else:
            tf.function(function, jit_compile=step["jit_compile"], autograph=False)()
    wanted = [
        [number < 2 * (last + 1) for number in range(8)] for last in (with_loss, 0, with_loss)
    ]
    assert structures[0] == structures[-1] == wanted
    for found, expected in zip(gradients(ours), gradients(plain)):
        pairs = [(a, b) for a, b in zip(found, expected) if b is not None]
        assert_all_close(*zip(*pairs), rtol=1e-5, atol=1e-6)
