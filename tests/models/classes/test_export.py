"""Models and functions are exported as Keras's and TensorFlow's own are: without recomputation, or
with their gradients.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import keras_recompute as kr

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*TF Lite.*:UserWarning"
)

X = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)


def network():
    x = inputs = keras.Input((6, 4))
    for _ in range(3):
        x = kr.RecomputationCheckpoint()(keras.layers.Dense(4, activation="gelu")(x))
    return kr.Model(inputs, keras.layers.Dense(1)(kr.LSTM(3)(x)))


def layer_model(layer):
    inputs = keras.Input((6, 4))
    return keras.Model(
        inputs, layer(inputs, inputs) if isinstance(layer, kr.MultiHeadAttention) else layer(inputs)
    )


MODELS = {
    "LSTM": lambda: layer_model(kr.LSTM(3)),
    "GRU": lambda: layer_model(kr.GRU(3, return_sequences=True)),
    "MultiHeadAttention": lambda: layer_model(kr.MultiHeadAttention(2, 2)),
    "Model": network,
}


def gradient(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy()


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_model(tmp_path, kind):
    model = MODELS[kind]()
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    np.testing.assert_allclose(loaded.serve(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient(loaded.serve, X), gradient(model, X), rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_nothing_of_recomputation_is_exported_for_inference(tmp_path):
    network().export(tmp_path, verbose=False)
    saved = tf.saved_model.load(tmp_path).signatures["serving_default"].graph.as_graph_def()
    nodes = [
        *saved.node,
        *(node for function in saved.library.function for node in function.node_def),
    ]
    assert len(nodes) > 20
    assert not [
        n.name
        for n in nodes
        if "recomput" in f"{n.name} {n.op} {n.attr['_gradient_op_type'].s}".lower()
    ]


weight = tf.Variable([2.0, 3.0])


@tf.custom_gradient
def squared(x):
    def gradient(dy):
        return dy * 2 * x

    return x * x, gradient


def body(x):
    return tf.exp(tf.sin(squared(x) * weight))


def looped(x):
    return tf.sin(
        tf.exp(
            tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y * weight)), (0, x))[1]
        )
    )


class Functions(tf.Module):
    """What a SavedModel is made of."""

    def __init__(self):
        super().__init__()
        self.weight, self.model = weight, network()

    @tf.function(input_signature=[tf.TensorSpec((2,))])
    def checkpointed(self, x):
        return kr.checkpoint(body)(x)

    @tf.function(input_signature=[tf.TensorSpec((None,))])
    def looped(self, x):
        return kr.checkpoint(looped)(x)

    @tf.function(input_signature=[tf.TensorSpec((2,))])
    def nested(self, x):
        return kr.checkpoint(lambda x: tf.sin(kr.checkpoint(body)(x)))(x)

    @tf.function(input_signature=[tf.TensorSpec((None, 6, 4))])
    def training_pass(self, x):
        return self.model(x, training=True)


NAMES = ["checkpointed", "looped", "nested", "training_pass"]
ELSEWHERE = """
import json, sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
found = {}
for name, x in json.loads(sys.argv[2]).items():
    x = tf.constant(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = getattr(loaded, name)(x)
    found[name] = tape.gradient(y, x).numpy().tolist()
print(json.dumps([found, "keras_recompute" in sys.modules]))
"""


@pytest.mark.long
def test_what_another_process_loads_has_its_gradients(tmp_path):
    functions = Functions()
    tf.saved_model.save(functions, tmp_path)
    given = {
        name: X if name == "training_pass" else np.array([0.1, 0.2], np.float32) for name in NAMES
    }
    wanted = {name: gradient(getattr(functions, name), x) for name, x in given.items()}
    arguments = [str(tmp_path), json.dumps({name: x.tolist() for name, x in given.items()})]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, has_us = json.loads(done.stdout)
    assert not has_us
    for name in NAMES:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.long
def test_saved_without_gradients_an_error_says_so(tmp_path):
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    functions = Functions()
    tf.saved_model.save(functions, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    with pytest.raises(kr.errors.InvalidProgramError, match="experimental_custom_gradients=True"):
        gradient(loaded.checkpointed, [0.1, 0.2])


@pytest.mark.long
@pytest.mark.parametrize(
    "imports", ["import keras, keras_recompute", "import keras_recompute, keras"]
)
def test_a_keras_file_in_another_process(tmp_path, imports):
    model = network()
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    script = (
        f"import sys, numpy as np; {imports}; kr = keras_recompute; "
        "model = keras.saving.load_model(sys.argv[1] + '/model.keras'); "
        "assert type(model) is kr.Model and model.plan.recomputes; "
        "np.save(sys.argv[1] + '/y.npy', model.predict(np.load(sys.argv[1] + '/x.npy'), verbose=0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.long
def test_a_model_for_small_devices():
    model = network()
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter._experimental_lower_tensor_list_ops = False  # as for Keras's own LSTM
    assert converter.convert()[4:8] == b"TFL3"  # the mark of the format


@pytest.mark.long
def test_gradients_leave_the_registry_with_their_graphs():
    def ours():
        return [
            n
            for n in ops.gradient_registry.list()
            if n.startswith(("KerasRecompute", "GradientByHand"))
        ]

    gc.collect()
    before = len(ours())
    step = tf.function(lambda x: tf.gradients(kr.checkpoint(body)(x), x))
    step(tf.constant([0.1, 0.2]))
    assert len(ours()) > before
    del step
    gc.collect()
    assert len(ours()) == before
