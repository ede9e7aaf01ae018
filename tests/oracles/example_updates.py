"""The first updates of the example from weights that NumPy draws, the same on each backend."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import recompute_lstm
from lstm_example.arguments import parse_arguments
from lstm_example.data import find_text, microbatches
from lstm_example.network import plain_network, store
from lstm_example.resumption import resume_settings
from lstm_example.saves import write_save

# The language reference that the example learns by itself differs between versions of Python.
TEXT = Path(__file__).with_name("example_text.txt")
ARGUMENTS = (
    "--seq-len 24 --units 6 --features 5 --batch-size 3 --gradient-accumulation 2 "
    f"--steps-per-epoch 8 --learning-rate 0.05 --quiet --text {TEXT}"
).split()
# Of the second to the fourth update of these arguments.
UPDATES = {
    "lstm": {
        "losses": [5.8542738, 5.7398219, 5.5498277],
        "gradient_norms": [0.6866541, 0.7123319, 0.6535237],
    },
    "gru": {
        "losses": [5.8196115, 5.5850773, 5.4200597],
        "gradient_norms": [1.0839050, 0.9578367, 0.9410921],
    },
}


def updates_from_start(folder: Path, cell: str, *more: str) -> dict:
    """Return the figures of a run that goes on from one update, which changed nothing."""
    options = parse_arguments([*ARGUMENTS, "--cell", cell], "")
    random, network = np.random.RandomState(1), plain_network(options)
    weights = [random.normal(scale=0.5, size=w.shape) for w in network.get_weights()]
    network.set_weights(weights)
    network.compile(keras.optimizers.Adam(options.learning_rate))
    network.optimizer.build(network.trainable_variables)
    network.optimizer.iterations.assign(1)
    backend = keras.backend.backend()
    state = {
        "updates": 1,
        "settings": resume_settings(options, find_text(options)),
        "versions": {"keras": keras.__version__, backend: _version(backend)},
        "losses": [0.0],
        "gradient_norms": [0.0],
        "validation": [],
        "trained_seconds": 0.0,
    }
    folder.mkdir()
    copy = plain_network(options)
    write_save(folder, state, lambda path: store(network, copy, path), keep=1)
    figures = folder.with_suffix(".json")
    asked = [*ARGUMENTS, "--cell", cell, *more, "--save", str(folder), "--resume"]
    assert recompute_lstm.main([*asked, "--json", str(figures)]) == 0
    return json.loads(figures.read_text())


def assert_first_updates_agree(folder: Path, cell: str) -> None:
    """Assert that the example's first update is NumPy's, and the next ones are TensorFlow's."""
    figures = updates_from_start(folder, cell, "--checkpoints", "3")
    assert figures["losses"][1] == pytest.approx(first_loss(cell), rel=1e-5)
    for name, wanted in UPDATES[cell].items():
        np.testing.assert_allclose(figures[name][1:], wanted, rtol=1e-4)


def _version(backend: str) -> str:
    return __import__(backend).__version__


def first_loss(cell: str) -> float:
    """Return the loss of the second update, by NumPy alone."""
    options = parse_arguments([*ARGUMENTS, "--cell", cell], "")
    random, shapes = np.random.RandomState(1), [w.shape for w in plain_network(options).weights]
    embedding, *recurrent, last, bias = [random.normal(scale=0.5, size=s) for s in shapes]
    run = {"lstm": _lstm, "gru": _gru}[cell]
    losses = []
    data = microbatches(options, find_text(options), first=2)
    for _ in range(2):
        inputs, targets = next(data)
        logits = run(embedding[inputs], *recurrent) @ last + bias
        odds = np.exp(logits)
        chances = np.take_along_axis(odds / odds.sum(-1, keepdims=True), targets[..., None], -1)
        losses.append(-np.log(chances).mean())
    return float(np.mean(losses))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _lstm(x, kernel, recurrent, bias):
    """Return the outputs of an LSTM, whose gates are input, forget, cell and output."""
    h = c = np.zeros((len(x), len(recurrent)))
    outputs = []
    for step in range(x.shape[1]):
        i, f, g, o = np.split(x[:, step] @ kernel + h @ recurrent + bias, 4, -1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1)


def _gru(x, kernel, recurrent, bias):
    """Return the outputs of a GRU, whose gates are update, reset and candidate."""
    h, outputs = np.zeros((len(x), len(recurrent))), []
    for step in range(x.shape[1]):
        given = np.split(x[:, step] @ kernel + bias[0], 3, -1)
        own = np.split(h @ recurrent + bias[1], 3, -1)
        z, r = _sigmoid(given[0] + own[0]), _sigmoid(given[1] + own[1])
        h = z * h + (1 - z) * np.tanh(given[2] + r * own[2])
        outputs.append(h)
    return np.stack(outputs, 1)
