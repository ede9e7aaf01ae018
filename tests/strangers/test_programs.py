"""Programs as people write them, with recomputation and without.

Both train to the same losses and weights, and the step with recomputation takes less memory.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_recompute.liveness import profile
from tests.oracle import COMPILE_OPTIONS, MODES

from .program import PLAIN, RECOMPUTED, adam
from .programs import PROGRAMS

UPDATES, BATCH = 5, 8

pytestmark = [
    # The plain program is warned of alike: of heads without a loss, and of layers without a build.
    pytest.mark.filterwarnings("ignore:Gradients do not exist", "ignore:.build... was called on"),
]


def ready(name, wrap, batch, mode):
    keras.utils.set_random_seed(1)
    found = PROGRAMS[name].make(wrap, batch)
    found.model.compile(adam(), loss=found.loss, **COMPILE_OPTIONS[mode])
    return found


def trained(name, wrap, mode):
    """Return the program after its updates, and the losses of each of them."""
    found = ready(name, wrap, BATCH, mode)
    options = {"batch_size": BATCH, "epochs": UPDATES, "shuffle": False, "verbose": 0}
    history = found.model.fit(found.x, found.y, **options)
    return found, history.history


def assert_near(ours, plain, tolerance, what):
    scale = max(1.0, np.abs(plain).max())
    np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance * scale, err_msg=what)


IN_CI = ("triplets", "variational_autoencoder")  # as graphs, though they are not quick


def mark_of(name, mode):
    if mode == "graph" and PROGRAMS[name].quick:
        return ()
    return pytest.mark.long(every_case=mode == "graph" and name in IN_CI)


CASES = [pytest.param(name, mode, marks=mark_of(name, mode)) for name in PROGRAMS for mode in MODES]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_it_trains_as_the_plain_program(name, mode, tmp_path):
    plain, plain_losses = trained(name, PLAIN, mode)
    ours, losses = trained(name, RECOMPUTED, mode)
    tolerance = max(PROGRAMS[name].tolerance, 1e-5 if mode == "jit" else 0.0)
    assert losses.keys() == plain_losses.keys()
    for key, values in plain_losses.items():
        assert len(values) == UPDATES
        assert_near(losses[key], values, tolerance, key)
    assert len(ours.model.weights) == len(plain.model.weights)
    for weight, expected in zip(ours.model.weights, plain.model.weights):
        assert_near(weight.numpy(), expected.numpy(), tolerance, expected.path)
    if mode == "graph" and plain.network is not None:
        assert_saved_and_loaded(ours, plain, tmp_path, tolerance)


def assert_saved_and_loaded(ours, plain, folder, tolerance):
    ours.network.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras", compile=False)
    batch = ours.x if ours.network_input is None else ours.network_input
    outputs = keras.tree.flatten(loaded(batch, training=False))
    wanted = keras.tree.flatten(ours.network(batch, training=False))
    plain_outputs = keras.tree.flatten(plain.network(batch, training=False))
    for output, same, expected in zip(outputs, wanted, plain_outputs):
        assert_near(output, same, 1e-6, "loaded")
        assert_near(output, expected, 10 * tolerance, "loaded, beside plain Keras")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, entry in PROGRAMS.items() if entry.saves_memory])
def test_its_step_takes_less_memory(name):
    def temporary_bytes(wrap):
        found = ready(name, wrap, PROGRAMS[name].batch, "jit")
        batch = (found.x,) if found.y is None else (found.x, found.y)
        return profile(found.model, *batch).allocated_temporary_bytes

    plain, ours = temporary_bytes(PLAIN), temporary_bytes(RECOMPUTED)
    assert ours < 0.9 * plain, f"{ours / 2**20:.2f} MiB, plain {plain / 2**20:.2f}"
