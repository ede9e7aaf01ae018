"""A save that is whole and holds another network, or less than all of it, is one line before
training.
"""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from keras_recompute.errors import InvalidArgumentError
from lstm_example.network import restore, sample_bytes
from lstm_example.saves import MODEL, OPTIMIZER, Save

keras = pytest.importorskip("keras")


def network(units=3):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def save(tmp_path):
    model = network()
    model.save(tmp_path / MODEL)
    write(tmp_path, arrays(model))
    return Save(tmp_path, {"versions": {"keras": keras.__version__}})


def arrays(model):
    return [np.full(variable.shape, 0.5, variable.dtype) for variable in model.optimizer.variables]


def write(folder, values):
    np.savez(folder / OPTIMIZER, *values)


def test_weights_and_optimiser_come_back(save):
    model = network()
    restore(model, save)
    for ours, saved in zip(
        model.get_weights(), keras.models.load_model(save.path / MODEL).get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, saved)
    for variable, array in zip(model.optimizer.variables, arrays(model), strict=True):
        np.testing.assert_array_equal(variable, array)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (lambda found: found[:-1], "optimizer.npz holds 5 arrays, and this run has 6"),
        (lambda _: [], "optimizer.npz holds 0 arrays"),
        (lambda found: [*found, found[0]], "optimizer.npz holds 7 arrays"),
        (lambda found: found[::-1], r"array 0 of optimizer.npz is float32\[3\], and this run has"),
        (
            lambda found: [*found[:-1], found[-1].astype(np.float64)],
            r"array 5 .* float64\[3\].* float32\[3\]",
        ),
        (lambda found: [*found[:-1], np.array([object()])], "optimizer.npz cannot be read"),
    ],
)
def test_another_optimiser_is_refused_and_nothing_is_changed(save, values, says):
    model = network()
    before = model.get_weights()
    write(save.path, values(arrays(model)))
    with pytest.raises(InvalidArgumentError, match=f"--resume .*{says}"):
        restore(model, save)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_arrays_are_taken_by_their_names(save):
    """An archive may hold them in any order."""
    with zipfile.ZipFile(save.path / OPTIMIZER) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(save.path / OPTIMIZER, "w") as archive:
        for name, data in reversed(members):
            archive.writestr(name, data)
    model = network()
    restore(model, save)
    assert [tuple(variable.shape) for variable in model.optimizer.variables] == [
        a.shape for a in arrays(model)
    ]


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_archive_is_refused(save, data):
    (save.path / OPTIMIZER).write_bytes(data)
    with pytest.raises(
        InvalidArgumentError, match=r"--resume .*optimizer.npz (cannot be read|holds 0)"
    ):
        restore(network(), save)


def test_another_network_is_refused(save):
    with pytest.raises(
        InvalidArgumentError, match=r"array 0 of model.keras is float32\[2, 3\].* float32\[2, 4\]"
    ):
        restore(network(4), save)
    with pytest.raises(
        InvalidArgumentError, match=r"--load .*model.keras is not a network for text"
    ):
        next(sample_bytes(save, b"a", length=1, temperature=1.0, seed=0))
