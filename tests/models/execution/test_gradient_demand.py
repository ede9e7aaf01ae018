"""Recomputation follows the tape: where a gradient may be asked, whatever ``training`` is, and
nowhere else.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from tests.oracle import assert_all_close, gradient_step, in_mode

FEATURES = 4
X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
SPEC = tf.TensorSpec(X.shape)
TRAININGS = (None, False, True)


@keras.saving.register_keras_serializable(package="tests.gradient_demand")
class Told(keras.layers.Layer):
    """What it does depends on whether ``training`` is None, False or True."""

    def call(self, x, training=None):
        return x * {None: 2.0, False: 3.0, True: 5.0}[training]


def network(*, fixed=None):
    """Layers with statistics, random numbers and an own opinion about ``training``."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((FEATURES,))
    for n in range(4):
        x = keras.layers.Dense(FEATURES, "gelu")(x)
        x = keras.layers.BatchNormalization(momentum=0.5)(x)
        if n == 1 and fixed is not None:
            x = keras.layers.Dropout(0.5, seed=3)(x, training=fixed)
        if n == 2:
            x = Told()(x)
        x = keras.layers.Dropout(0.2, seed=n)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


WAYS = {
    "every": lambda model: kr.checkpointed(model, every=4),
    "layers": lambda model: kr.checkpointed(model, layers=keras.layers.Dense),
}


def replays(graph):
    """Return how often parts of a graph, or of its functions, are recomputed: by names, for they
    alone tell.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return sum("recomputation.backward" in node.name for node in nodes)


def program_nodes(model, call):
    """Return what is written for ``call(model, x)``, and its gradient, by kind."""

    def step(x):
        y = tf.reduce_sum(call(model, x) ** 2)
        return tf.gradients(y, [x, *(v.value for v in model.trainable_variables)])

    return replays(tf.function(step).get_concrete_function(SPEC).graph)


def gradients(model, training, mode):
    """Return outputs, gradients of input and weights, and statistics afterwards."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x) if training is None else model(x, training=training)
        return y, tape.gradient(y, [x, *(v.value for v in model.trainable_variables)])

    y, found = in_mode(mode, step)(tf.constant(X))
    return [y, *found, *(v.value for v in model.non_trainable_variables)]


def long(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.long)


CASES = [  # way, training, that of one dropout in the graph, mode
    ("every", None, None, "graph"),
    ("layers", None, None, "eager"),
    ("every", None, True, "graph"),
    *(long(way, training, None, "eager") for way in WAYS for training in (False, True)),
    *(long("every", training, fixed, "graph") for training in TRAININGS for fixed in (False, True)),
]


@pytest.mark.parametrize(("way", "training", "fixed", "mode"), CASES)
def test_values_are_those_of_the_plain_model(way, training, fixed, mode):
    ours = gradients(WAYS[way](network(fixed=fixed)), training, mode)
    plain = gradients(network(fixed=fixed), training, mode)
    assert_all_close(ours, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [None, long(False), long(True)])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_in_a_graph_are_recomputed(way, training):
    """``tf.gradients`` needs no tape, so a function traced without one has to be ready for it."""
    call = (lambda m, x: m(x)) if training is None else (lambda m, x: m(x, training=training))
    assert program_nodes(network(), call) == 0
    assert program_nodes(WAYS[way](network()), call) > 0


@pytest.mark.parametrize("way", WAYS)
def test_a_tape_around_a_function_finds_recomputation(way):
    """TensorFlow differentiates the function as a whole when a tape asks; it may have been traced
    long before.
    """
    ours, plain = WAYS[way](network()), network()
    for model in (ours, plain):
        model.called = tf.function(lambda x, model=model: model(x, training=False))
        model.called(tf.constant(X))
    found = []
    for model in (ours, plain):
        with tf.GradientTape() as tape:
            y = model.called(tf.constant(X))
        found.append(tape.gradient(y, [v.value for v in model.trainable_variables]))
    assert_all_close(*found, rtol=1e-4, atol=1e-6)

    step = gradient_step(
        ours.called, weights=[v.value for v in ours.trainable_variables], loss=tf.identity
    )
    assert replays(tf.function(step).get_concrete_function(SPEC).graph) > 0


def test_in_the_call_of_another_layer():
    class Holder(keras.layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return self.inner(x) + 1.0

    assert program_nodes(Holder(WAYS["every"](network())), lambda m, x: m(x)) > 0
    assert program_nodes(Holder(WAYS["layers"](network())), lambda m, x: m(x)) > 0


def test_the_method_call_alone_passes_training_on():
    ours, plain = WAYS["every"](network()), network()
    for training in (False, True):
        np.testing.assert_allclose(
            tf.function(lambda m=ours, t=training: m.call(tf.constant(X), training=t))(),
            tf.function(lambda m=plain, t=training: m.call(tf.constant(X), training=t))(),
            rtol=1e-4,
        )


class Trainer(keras.Model):
    """Calls its network without ``training`` in all of its steps."""

    def __init__(self, net, note):
        super().__init__()
        self.net, self.note = net, note

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net(data) ** 2)
        weights = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        loss = tf.reduce_mean(self.net(data) ** 2)
        self.note("test", tf.compat.v1.get_default_graph())
        return {"loss": loss}

    def predict_step(self, data):
        results = self.net(data)
        self.note("predict", tf.compat.v1.get_default_graph())
        return results


@pytest.mark.parametrize("way", WAYS)
def test_inference_is_the_plain_program(way):
    """The same operations, as many of each: no loop, no fence, no gradient of ours."""
    found = []
    for model in (WAYS[way](network()), network()):
        graphs = {}
        trainer = Trainer(model, graphs.__setitem__)
        trainer.compile("sgd", jit_compile=False)
        trainer.evaluate(X, verbose=0)
        trainer.predict(X, verbose=0)
        kinds = {
            name: sorted(op.type for op in graph.get_operations()) for name, graph in graphs.items()
        }
        found.append(kinds)
    assert set(found[0]) == {"test", "predict"}
    assert found[0] == found[1]


@pytest.mark.long
def test_an_exported_function_is_the_plain_one(tmp_path):
    found = []
    for name, model in (("ours", WAYS["every"](network())), ("plain", network())):
        model.export(tmp_path / name, verbose=False)
        tf.saved_model.save(model, tmp_path / f"{name} of tensorflow")
        for path in (tmp_path / name, tmp_path / f"{name} of tensorflow"):
            graph = tf.saved_model.load(path).signatures["serving_default"].graph.as_graph_def()
            found.append(sorted(node.op for f in graph.library.function for node in f.node_def))
    assert found[0] == found[2]
    assert found[1] == found[3]


def test_a_call_without_a_tape_makes_no_program():
    """There is nothing to see from outside but the time that tracing takes."""
    ours = WAYS["every"](network())
    ours(X)
    ours(X, training=True)
    assert len(ours._eager_partitions) == 0
    with tf.GradientTape():
        ours(X)
    assert len(ours._eager_partitions) == 1


def test_forward_mode_is_the_plain_models():
    ours, plain = WAYS["every"](network()), network()
    found = []
    for model in (ours, plain):
        x = tf.constant(X)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = model(x)
        found.append(accumulator.jvp(y))
    np.testing.assert_allclose(*found, rtol=1e-4)


def marked(model_class):
    x = inputs = keras.Input((FEATURES,))
    for _ in range(3):
        x = kr.RecomputationCheckpoint()(keras.layers.Dense(FEATURES, "gelu")(x))
    return model_class(inputs, x)


def sequential(_):
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(4),
            kr.RecomputationCheckpoint(),
            keras.layers.Dense(4),
        ]
    )


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.mark = keras.layers.Dense(FEATURES), kr.RecomputationCheckpoint()

    def call(self, x):
        return self.dense(self.mark(self.dense(x)))


def new_head():
    model = marked(kr.Model)
    return keras.Model(model.input, keras.layers.Dense(1)(model.output))


HOLDERS = {
    "functional": lambda: marked(keras.Model),
    "sequential": lambda: sequential(None),
    "subclass": Subclassed,
    "new head": new_head,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_checkpoint_that_nobody_obeys_says_so_once(holder):
    model = HOLDERS[holder]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        model(X)
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.warns(RecomputeWarning, match="does nothing: .* keras_recompute.Model") as caught:
        model.fit(X, X[:, :1] if holder == "new head" else X, verbose=0)
    assert len([w for w in caught if "does nothing" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        model.fit(X, X[:, :1] if holder == "new head" else X, verbose=0)


def test_a_checkpoint_in_our_model_says_nothing():
    model = marked(kr.Model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecomputeWarning)
        for training in TRAININGS:
            gradients(model, training, "graph")
            gradients(model, training, "eager")
