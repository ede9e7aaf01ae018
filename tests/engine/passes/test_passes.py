"""Passes change what a program takes, never what it computes; each can be left out."""

from __future__ import annotations

import importlib
import operator
import pkgutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.backends import CPU, GPU, TPU, tracing_for
from keras_recompute.engine import kernels, passes
from keras_recompute.engine.graph.target import POINTS
from keras_recompute.engine.passes import PASSES, leaving_out, target_now
from keras_recompute.errors import InvalidArgumentError
from tests.oracle import assert_all_close, loss_and_gradients, mean_square

LAYERS = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")


def network() -> keras.Model:
    """Something of every pass: convolutions, pooling, normalisation, attention, equal blocks, a
    recurrence, residual sums.
    """
    x = inputs = keras.Input((8, 8, 3))
    x = LAYERS.MaxPooling2D(name="pool")(LAYERS.Conv2D(8, 3, padding="same", activation="gelu")(x))
    for number in range(3):
        y = LAYERS.BatchNormalization()(
            LAYERS.Conv2D(8, 3, padding="same", groups=8 if number == 1 else 1)(x)
        )
        x = LAYERS.Add(name=f"block_{number}")([x, LAYERS.ReLU()(y)])
    x = LAYERS.Reshape((16, 8))(x)
    x = LAYERS.Add(name="attended")([x, kr.MultiHeadAttention(2, 4)(x, x)])
    x = kr.LSTM(8, return_sequences=True, name="lstm")(x)
    return keras.Model(inputs, LAYERS.Dense(1)(x))


@pytest.fixture(scope="module")
def plain() -> keras.Model:
    keras.utils.set_random_seed(0)
    return network()


@pytest.fixture(scope="module")
def model(plain) -> kr.Model:
    return kr.checkpointed(plain, at=["pool", "block_0", "block_1", "block_2", "attended", "lstm"])


@pytest.fixture(scope="module")
def expected(plain, model) -> list[np.ndarray]:
    """What the plain model's loss and gradients are, of the weights that ``model`` has too."""
    assert all(map(operator.is_, plain.variables, model.variables))
    return gradients(plain, jit=False)


def gradients(model: keras.Model, *, jit: bool) -> list[np.ndarray]:
    state = [v.numpy() for v in model.variables]
    mode = "jit" if jit else "graph"
    found = loss_and_gradients(model, IMAGES, mode=mode, loss=mean_square)
    for variable, value in zip(model.variables, state):
        variable.assign(value)
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in PASSES])
def test_without_a_pass_the_numbers_are_the_plain_model_s(model, expected, name):
    with leaving_out(name):
        found = gradients(model, jit=not any(on.startswith("tensorflow") for on in PASSES[name].on))
    assert_all_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("backend", [GPU, TPU])
def test_with_the_passes_of_another_backend_the_numbers_are_the_plain_model_s(
    model, expected, backend
):
    with tracing_for(backend):
        found = gradients(model, jit=True)
    assert_all_close(found, expected, rtol=1e-3, atol=1e-5)


def test_on_a_gpu_nothing_is_a_branch_that_the_host_decides():
    x = inputs = keras.Input((16,), batch_size=4)
    for number in range(4):
        x = LAYERS.Dense(16, activation="tanh", name=f"dense_{number}")(x)
    model = kr.checkpointed(keras.Model(inputs, x), at=["dense_1"])

    def kinds(backend: str) -> list[str]:
        with tracing_for(backend):

            @tf.function(jit_compile=True, autograph=False)
            def step(x):
                weights = [w.value for w in model.weights]
                return tf.gradients(tf.nn.l2_loss(model(x, training=True)), weights)

            graph = step.get_concrete_function(tf.TensorSpec((4, 16))).graph
        return [operation.type for operation in graph.get_operations()]

    on_cpu, on_gpu = kinds(CPU), kinds(GPU)
    # The slope of the section's last activation, and the section.
    assert on_cpu.count("StatelessIf") == 2
    assert on_gpu.count("StatelessIf") == 0
    assert "XlaOptimizationBarrier" in on_gpu


def lstm(x):
    return kr.LSTM(4, return_sequences=True, name="cut_at")(x)


def attention(x):
    return keras.layers.Add(name="cut_at")([x, kr.MultiHeadAttention(2, 2)(x, x)])


def convolution(x):
    return LAYERS.MaxPooling1D(2, name="cut_at")(
        LAYERS.BatchNormalization()(LAYERS.Conv1D(4, 3, padding="same")(x))
    )


def loop(x):
    for number in range(4):
        x = LAYERS.Dense(4, activation="gelu", name="cut_at" if number == 0 else None)(x)
    return x


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.long) for mode in ("eager", "graph")), "jit"]
)
@pytest.mark.parametrize("kind", [lstm, attention, convolution, loop])
def test_the_engine_alone_is_right(kind, mode):
    """Values and the gradients of all weights, without any pass, on every target."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 4))
    plain = keras.Model(inputs, LAYERS.Dense(1)(kind(inputs)))
    ours = kr.checkpointed(
        plain, at=[layer.name for layer in plain.layers[1:-1]] if kind is loop else ["cut_at"]
    )
    sequences = np.random.default_rng(0).normal(size=(2, 8, 4)).astype("float32")
    options = {"weights": [v.value for v in plain.trainable_variables], "loss": mean_square}
    expected = loss_and_gradients(plain, sequences, mode="eager", **options)
    with leaving_out(*PASSES):
        found = loss_and_gradients(ours, sequences, mode=mode, **options)
    assert_all_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_target_is_looked_up_in_the_graph_under_construction():
    seen = []

    def look():
        seen.append(target_now())
        return tf.constant(0)

    tf.function(look)()
    tf.function(look, jit_compile=True)()
    with leaving_out("scheduling", "pooling"):
        tf.function(look, jit_compile=True)()
    outside, whole, less = ({each.name for each in target.passes} for target in seen)
    assert [target.is_xla for target in seen] == [False, True, True]
    on_cpu = not tf.config.list_logical_devices("GPU")

    def for_compiler(compiler: str) -> set[str]:
        names = {compiler, f"{compiler} on cpu"} if on_cpu else {compiler}
        return {name for name, each in PASSES.items() if names.intersection(each.on)}

    assert outside == for_compiler("tensorflow")
    assert whole == for_compiler("xla")
    assert less == whole - {"scheduling", "pooling"}


def test_the_list_says_of_every_pass_where_its_worth_is_noted():
    folder = Path(__file__).parents[3] / "benchmarks" / "notes"
    for name, each in PASSES.items():
        assert f"`{name}`" in (folder / each.notes).read_text(), name
        assert each.point in POINTS, name


def test_every_file_of_a_pass_is_in_the_list_and_says_for_whom_it_is():
    listed = {each.apply.__module__ for each in PASSES.values()}
    listed.remove("keras_recompute.engine.graph.opaque_values")  # which others use too
    beside = {"max_flow", "thresholds", "conv_windows"}
    files = set()
    for folder in (passes, kernels):
        for found in pkgutil.iter_modules(folder.__path__):
            if found.name not in beside:
                files.add(f"{folder.__name__}.{found.name}")
    assert files == listed
    for name in listed:
        text = importlib.import_module(name).__doc__
        assert "XLA" in text or "every target" in text, name
        noted = {
            f"benchmarks/notes/{each.notes}"
            for each in PASSES.values()
            if each.apply.__module__ == name
        }
        assert any(file in text for file in noted), name


def test_a_pass_that_there_is_not():
    known = "there is no pass 'speed'; there are inlining, depthwise, normalization, "
    with pytest.raises(InvalidArgumentError, match=known), leaving_out("speed"):
        pass
