"""The fused LSTM and GRU on JAX against Keras's: results, every gradient, and memory."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning, UnsupportedError
from keras_recompute.layers import recurrent
from keras_recompute.liveness.device_compilers import find_device
from keras_recompute.liveness.jax_functions import trace_function

BATCH, TIME, FEATURES, UNITS = 3, 6, 5, 4
CELLS = {
    "lstm": ("LSTM", {}),
    "gru-after": ("GRU", {"reset_after": True}),
    "gru-before": ("GRU", {"reset_after": False}),
}
CELL = pytest.mark.parametrize("cell", CELLS)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = numbers(BATCH, TIME, FEATURES)


def pair(cell, **arguments):
    """Return our layer and Keras's with the same weights, not even the bias zero."""
    name, extra = CELLS[cell]
    arguments = {"return_sequences": True, "return_state": True, **extra, **arguments}
    layers = [getattr(home, name)(UNITS, **arguments) for home in (kr, keras.layers)]
    for layer in layers:
        layer.build(X.shape)
        weights = [numbers(*w.shape, seed=1 + i) / 2 for i, w in enumerate(layer.weights[:3])]
        for variable, value in zip(layer.weights, weights):
            variable.assign(value)
    return layers


def states_for(cell):
    return [numbers(BATCH, UNITS, seed=20 + i) for i in range(2 if cell == "lstm" else 1)]


def loss_of(layer, **call):
    """Return a loss of weights, inputs and states, in which each number has its own weight."""

    def loss(weights, x, *states):
        state = [v.value for v in layer.non_trainable_variables]
        found, _ = layer.stateless_call(weights, state, x, initial_state=list(states), **call)
        parts = []
        for number, each in enumerate(jax.tree.leaves(found)):
            parts.append(
                (jnp.sin(each.astype("float32")) * numbers(*each.shape, seed=number)).sum()
            )
        return sum(parts), found

    return loss


def results(layer, cell, transform=jax.jit, **call):
    """Return results and the gradients of weights, inputs and states."""
    states = states_for(cell)
    weights = [v.value for v in layer.trainable_variables]
    places = tuple(range(2 + len(states)))
    step = transform(jax.grad(loss_of(layer, **call), argnums=places, has_aux=True))
    return jax.tree.leaves(step(weights, X, *states))


def assert_near(found, wanted, tolerance=1e-6):
    for ours, plain in zip(found, wanted, strict=True):
        scale = max(1.0, float(np.abs(plain).max()))
        np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance * scale)


@CELL
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"return_sequences": False},
        {"go_backwards": True, "return_state": False},
        {"use_bias": False},
    ],
    ids=str,
)
def test_results_and_gradients(cell, arguments):
    ours, plain = pair(cell, **arguments)
    assert_near(results(ours, cell), results(plain, cell))


def test_without_jit():
    ours, plain = pair("lstm")
    found, wanted = (results(each, "lstm", lambda step: step) for each in (ours, plain))
    assert_near(found, wanted)


@CELL
def test_under_vmap_and_checkpoint(cell):
    found = []
    for layer in pair(cell):
        gradient = jax.grad(jax.checkpoint(loss_of(layer)), argnums=(0, 1), has_aux=True)
        mapped = jax.vmap(gradient, in_axes=(None, 0, *[None] * len(states_for(cell))))
        weights = [v.value for v in layer.trainable_variables]
        made = jax.jit(mapped)(weights, jnp.stack([X, X + 1]), *states_for(cell))
        found.append(jax.tree.leaves(made))
    assert_near(*found)


def squares_of_gradients(layer, cell):
    first = jax.grad(lambda w, x: loss_of(layer)(w, x, *states_for(cell))[0], argnums=(0, 1))
    return lambda w, x: sum(jnp.sum(g * g) for g in jax.tree.leaves(first(w, x)))


@CELL
def test_second_derivatives(cell):
    found = []
    for layer in pair(cell):
        second = jax.grad(squares_of_gradients(layer, cell), argnums=(0, 1))
        weights = [v.value for v in layer.trainable_variables]
        found.append(jax.tree.leaves(jax.jit(second)(weights, X)))
    assert_near(*found, tolerance=1e-5)


@CELL
def test_dropout_draws_keras_s_mask(cell):
    ours, plain = pair(cell, dropout=0.5, seed=11)
    dropped = results(ours, cell, training=True)
    assert_near(dropped, results(plain, cell, training=True))
    assert np.abs(dropped[-1] - results(ours, cell, training=False)[-1]).max() > 0.01


def test_stateful():
    ours, plain = pair("lstm", stateful=True)
    for part in (X[:, :3], X[:, 3:]):
        assert_near(ours(part), plain(part))
    assert_near([v.value for v in ours.states], [v.value for v in plain.states])


@CELL
def test_half_precision_is_near_the_exact_result(cell):
    ours, _ = pair(cell, dtype="mixed_bfloat16")
    _, plain = pair(cell)
    found = results(ours, cell)
    assert ours(X)[0].dtype == jnp.bfloat16
    assert_near([each.astype("float32") for each in found], results(plain, cell), 5e-2)


@CELL
def test_save_and_load(cell, tmp_path):
    ours, _ = pair(cell, return_state=False, dropout=0.25)
    inputs = keras.Input((TIME, FEATURES))
    model = keras.Model(inputs, ours(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is type(ours)
    np.testing.assert_array_equal(loaded(X), model(X))


def test_a_training_step_takes_less_memory():
    """Beside Keras's, at 64 steps of 16 units. Keras keeps more, and new arrays beside the old."""
    x, y = numbers(8, 64, 4), numbers(8, 64, 1)
    for name in ("LSTM", "GRU"):
        found = []
        for home in (kr, keras.layers):
            inputs = keras.Input((64, 4))
            outputs = getattr(home, name)(16, return_sequences=True)(inputs)
            model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
            model.compile("adam", "mse")
            found.append(kr.liveness.profile(model, x, y).allocated_temporary_bytes)
        ours, plain = found
        assert ours < 0.65 * plain, f"{name}: {ours} bytes, and {plain} of Keras's layer"


def test_the_kernel_of_gpus_is_keras_s(monkeypatch):
    """Here Keras finds no GPU, and runs its own loop, which takes any activation."""
    monkeypatch.setattr(recurrent, "runs_on_cudnn", lambda _: True)
    ours, plain = pair("lstm")
    assert_near(ours(X), plain(X))
    assert "custom_vjp" not in str(jax.make_jaxpr(ours)(X))
    refused = kr.LSTM(UNITS, use_cudnn=True)
    with pytest.raises(ValueError, match="cuDNN is not supported"):
        refused(X)


def test_a_gpu_that_is_not_here_runs_cudnn_which_is_said():
    batch = tuple(np.ones(shape, "float32") for shape in ((BATCH, TIME, FEATURES), (BATCH, UNITS)))

    def trace(layer, device):
        model = keras.Sequential([keras.Input((TIME, FEATURES)), layer])
        model.compile("sgd", "mse")
        target = find_device(device)
        trace_function(model, batch, {}, input_feed=None, layers_of=None, target=target)

    with pytest.warns(RecomputeWarning, match="runs on cuDNN on a GPU.*use_cudnn=False"):
        trace(keras.layers.LSTM(UNITS), "h100")
    # Nothing is said of others: warnings are errors in tests.
    trace(keras.layers.LSTM(UNITS), "v5e")
    trace(keras.layers.LSTM(UNITS, use_cudnn=False), "h100")
    trace(kr.LSTM(UNITS), "h100")


@pytest.mark.parametrize("layer", [kr.LSTM, kr.GRU])
def test_a_gpu_runs_ours_unless_cudnn_is_asked_for(layer, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "custom_vjp" in str(jax.make_jaxpr(layer(UNITS))(X))


def test_a_gpu_runs_cudnn_where_it_is_asked_for(monkeypatch):
    """Of float32 alone. Here JAX lacks the module that asks cuDNN."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(AttributeError, match="rnn"):
        kr.LSTM(UNITS, use_cudnn=True)(X)
    with pytest.raises(UnsupportedError, match="on JAX an LSTM of float32"):
        kr.LSTM(UNITS, use_cudnn=True, dtype="mixed_bfloat16")(X)


def test_masks_and_other_activations_are_refused():
    ours, _ = pair("gru-after")
    with pytest.raises(UnsupportedError, match="has use_cudnn=True, and does not run on cuDNN"):
        kr.LSTM(UNITS, use_cudnn=True)(X)
    with pytest.raises(UnsupportedError, match="was given a mask"):
        ours(X, mask=np.ones((BATCH, TIME), bool))
    with pytest.raises(UnsupportedError, match="activation='relu' is not supported"):
        kr.GRU(UNITS, activation="relu")
