"""The engine's one rule about state: only pure operations run twice.

Everything else happens once and is saved.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.capture.purity import Purity
from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_everything, save_nothing
from tests.oracle import loss_step, numbers

from ..engine_vs_plain import assert_same, differentiate, parted, through_engine

POLICIES = pytest.mark.parametrize(
    "policy", [save_nothing, save_everything], ids=["save_nothing", "save_everything"]
)
JIT = pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
X = numbers(6, 8)


def random_mask(kind: str):
    """Return a function that makes a new random mask at every call."""
    if kind == "tf.random":
        return lambda x: tf.cast(tf.random.uniform(tf.shape(x)) < 0.5, x.dtype)
    if kind == "tf.random.Generator":
        generator = tf.random.Generator.from_seed(7)
        return lambda x: tf.cast(generator.uniform(tf.shape(x)) < 0.5, x.dtype)
    if kind == "keras.layers.Dropout":
        layer = keras.layers.Dropout(0.5, seed=7)
        return lambda x: layer(tf.ones_like(x), training=True)
    raise ValueError(kind)


@JIT
@POLICIES
@pytest.mark.parametrize("kind", ["tf.random", "tf.random.Generator", "keras.layers.Dropout"])
def test_the_random_mask_of_the_backward_pass_is_that_of_the_forward_pass(kind, policy, jit):
    """d(x * mask)/dx is the mask that was replayed: all of its 48 elements must equal the forward
    pass's.
    """
    mask_of = random_mask(kind)
    section = through_engine(lambda x: tf.exp(x) * mask_of(x), policy)

    step = loss_step(lambda x: section(x)[0], of_inputs=True, loss=tf.identity)
    run = tf.function(step, jit_compile=jit, autograph=False)
    first, gradient = run(tf.constant(X))
    assert 0 < np.count_nonzero(first) < X.size, (
        "the mask hides nothing, or everything: the test would prove nothing"
    )
    np.testing.assert_array_equal(gradient, first)
    if (
        kind != "tf.random" or not jit
    ):  # XLA draws the same numbers at every run where no state tells runs apart
        again, _ = run(tf.constant(X))
        assert (np.asarray(first) != np.asarray(again)).any(), (
            "a second step must draw another mask"
        )


def test_a_mask_is_recomputed_from_its_seed():
    """Saved of a Keras dropout are its seed, two numbers of 4 bytes, and not the 48 elements of its
    mask.
    """
    layer = keras.layers.Dropout(0.5, seed=7)
    layer(X, training=True)
    part = parted(lambda x: tf.exp(x) * layer(tf.sin(x), training=True), [X])
    assert sum(t.shape.num_elements() * t.dtype.size for t in part.saved) <= 16, part.saved
    assert any("Random" in op.type for op in part.replayed)


@JIT
@POLICIES
def test_a_batch_norm_updates_its_statistics_once(policy, jit):
    layer = keras.layers.BatchNormalization(momentum=0.9)
    layer.build(X.shape)
    shift = tf.constant(3.0)
    differentiate(
        through_engine(lambda x: layer(tf.sin(x) + shift, training=True), policy),
        [X],
        layer.trainable_variables,
        jit=jit,
    )
    # moving mean = 0.9 * 0 + 0.1 * mean; updated twice it would be 0.19 * mean
    np.testing.assert_allclose(layer.moving_mean, 0.1 * (np.sin(X) + 3.0).mean(axis=0), rtol=1e-5)


@POLICIES
def test_a_batch_norm_has_the_gradient_of_the_plain_one(policy):
    layer = keras.layers.BatchNormalization()
    layer.build(X.shape)
    variables = [v.value for v in layer.trainable_variables]

    def function(x):
        return layer(tf.sin(x), training=True) ** 2

    assert_same(
        differentiate(through_engine(function, policy), [X], variables),
        differentiate(function, [X], variables),
        relative=1e-6,
    )


@POLICIES
def test_an_assignment_happens_once_and_in_its_place(policy):
    """Reads before and after the assignment see the value before and after it, also in the backward
    pass.
    """
    counter = tf.Variable(1.0)

    def function(x):
        before = counter.read_value()
        counter.assign_add(2.0)
        return tf.sin(x * before) + tf.sin(x * counter.read_value())

    ours = differentiate(through_engine(function, policy), [X])
    assert counter.numpy() == 3.0
    counter.assign(1.0)
    assert_same(ours, differentiate(function, [X]), relative=1e-6)


def test_a_variable_that_is_read_and_assigned_keeps_its_gradient():
    scale = tf.Variable(2.0)

    def function(x):
        y = tf.sin(x * scale)
        scale.assign_sub(0.5)
        return y

    ours = differentiate(through_engine(function), [X], [scale])
    assert scale.numpy() == 1.5
    scale.assign(2.0)
    assert_same(ours, differentiate(function, [X], [scale]), relative=1e-6)


@POLICIES
def test_a_print_prints_once(policy, capfd):
    def function(x):
        tf.print("printed by the section")
        return tf.exp(tf.sin(x))

    differentiate(through_engine(function, policy), [X])
    assert capfd.readouterr().err.count("printed by the section") == 1


def test_a_python_side_effect_is_seen_by_no_gradient():
    calls = []

    def py(x):
        calls.append(1)
        return np.sin(x)

    def function(x):
        return (
            tf.exp(
                tf.ensure_shape(tf.numpy_function(py, [tf.stop_gradient(x)], tf.float32), x.shape)
            )
            * x
        )

    differentiate(through_engine(function), [X])
    assert len(calls) == 1


@POLICIES
def test_randomness_in_a_loop(policy):
    """A loop that draws numbers is impure as a whole: it runs once, and what its gradient reads is
    saved.
    """

    def function(x):
        def body(i, h, product):
            keep = tf.cast(tf.random.uniform(tf.shape(h)) < 0.5, h.dtype)
            return i + 1, h * keep, product + keep

        return tf.while_loop(
            lambda i, *_: i < 3, body, (0, x, tf.zeros_like(x)), maximum_iterations=3
        )[1:]

    @tf.function(autograph=False)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, drawn = through_engine(function, policy)(x)
        return drawn, y, tape.gradient(y, x)

    drawn, y, gradient = run(tf.ones_like(X))
    # dy/dx is the product of the three masks: one where all three kept, as y itself is for x = 1
    np.testing.assert_array_equal(gradient, y)
    np.testing.assert_array_equal(gradient, (drawn == 3.0).numpy().astype("float32"))
    loops = [
        op
        for op in run.get_concrete_function(tf.ones_like(X)).graph.get_operations()
        if op.type == "While"
    ]
    assert len(loops) == 1, (
        f"the loop that draws numbers stands more than once: {[op.name for op in loops]}"
    )


def pure_cases(x, v):
    yield "an operation", lambda: tf.sin(x)
    yield "a variable read", lambda: x * v
    yield (
        "a read in a loop",
        lambda: tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, h * v), (0, x)),
    )
    yield "a read in a branch", lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: x * v, lambda: x)
    yield "a stateless draw", lambda: tf.random.stateless_uniform(x.shape, [1, 2])
    yield "a call", lambda: tf.function(lambda y: y * v)(x)


def impure_cases(x, v):
    def draw(i, h):
        return i + 1, tf.random.uniform(h.shape)

    yield "a draw", lambda: tf.random.uniform(x.shape)
    yield "an assignment", lambda: v.assign_add(1.0)
    yield "a read of what is assigned", lambda: (v.assign_add(1.0), v.read_value())[1]
    yield "a draw in a loop", lambda: tf.while_loop(lambda i, _: i < 2, draw, (0, x))
    yield (
        "an assignment in a branch",
        lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: v.assign_add(1.0), lambda: v * 1.0),
    )
    yield "a draw in a call", lambda: tf.function(lambda y: tf.random.uniform(y.shape))(x)


@pytest.mark.parametrize("is_pure", [True, False], ids=["pure", "impure"])
def test_which_operations_are_pure(is_pure):
    cases = pure_cases if is_pure else impure_cases
    v = tf.Variable(2.0)
    for number, (name, _) in enumerate(cases(None, v)):
        traced = trace(
            lambda x, number=number: list(cases(x, v))[number][1](),
            [tf.TensorSpec(X.shape)],
            target_now(),
        )
        impure = [op.name for op in traced.graph.get_operations() if not traced.purity.is_pure(op)]
        assert bool(impure) != is_pure, f"{name}: impure are {impure}"


def test_a_function_that_calls_itself_is_no_trap():
    """Purity walks the call graph, which may have circles; a made-up one here, since TensorFlow
    makes few.
    """

    class Function:
        definition = tf.compat.v1.GraphDef().library.function.add()

    node = Function.definition.node_def.add(op="PartitionedCall", name="again")
    node.attr["f"].func.name = "circle"

    class Library:
        def _get_function(self, name):
            return Function if name == "circle" else None

        def get_operations(self):
            return []

    purity = Purity(Library())
    assert purity._named_function_is_pure("circle")
    assert not purity._named_function_is_pure("a function that is nowhere")
