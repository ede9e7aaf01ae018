"""``keras-recompute fits`` for a device whose programs need no package of its own."""

import io
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from rich.console import Console

import keras_recompute as kr
from keras_recompute.fits.command import main
from keras_recompute.fits.held_bytes import COLLECTIVES, HELD
from keras_recompute.sizes import parse_bytes

dear = pytest.mark.long(every_case=True)

BACKEND = keras.backend.backend()
# Programs are compiled for the CPU here. PyTorch's are only recorded, and no device is asked.
DEVICE = "h100" if BACKEND == "torch" else "local"
WIDTH, DEPTH, BATCH = 64, 6, 256
PROGRAM = f"""
import keras

def build():
    layers = [keras.layers.Dense({WIDTH}, "gelu", name=f"dense_{{n}}") for n in range({DEPTH})]
    return keras.Sequential([keras.Input(({WIDTH},)), *layers], name="net")

def compiled():
    model = build()
    model.compile("adamw", "mse")
    return model

def sequences():
    x = inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(50, 16)(x)
    model = keras.Model(inputs, keras.layers.Dense(50)(x), name="tokens")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model

def sums():
    long = keras.Input((None, 4), name="long")
    short = keras.Input((None, 4), name="short")
    mean = keras.layers.GlobalAveragePooling1D()
    return keras.Model([long, short], mean(long) + mean(short), name="sums")

def adapts_nothing():
    model = build()
    model.enable_lora = lambda rank: [setattr(each, "trainable", False) for each in model.layers]
    return model

def number():
    return 3

def broken():
    raise KeyError("weights")
"""


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Ask by a command line in a folder with net.py; return code, output and error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(PROGRAM)

    def asked(line):
        keras.backend.clear_session()
        shown = io.StringIO()
        code = main(line.split(), console=Console(file=shown, width=100))
        return code, shown.getvalue(), capsys.readouterr().err

    yield asked
    keras.distribution.set_distribution(None)
    keras.config.set_dtype_policy("float32")


def plain_step():
    names = {}
    exec(PROGRAM, names)
    model = names["build"]()
    model.compile("adamw", "mse")
    x = np.zeros((BATCH, WIDTH), "float32")
    return model, x


def test_a_model_that_fits_needs_no_checkpoints(ask):
    code, shown, error = ask(f"net.py:build --device {DEVICE} --batch {BATCH} --no-search")
    assert (code, error) == (0, "")
    assert "net, 24,960 weights. AdamW, the squares of its outputs, batch 256" in shown
    assert "Yes, without checkpoints" in shown
    # Six kernels of 64 x 64 numbers of four bytes, and six biases of 64; twice as much of AdamW's.
    held = 4 * DEPTH * (WIDTH * WIDTH + WIDTH)
    assert parse_bytes(found_in(shown, "weights")) == pytest.approx(held, rel=0.01)
    assert parse_bytes(found_in(shown, "optimizer")) == pytest.approx(2 * held, rel=0.01)
    parts = sum(parse_bytes(found_in(shown, part)) for part in HELD if part != COLLECTIVES)
    assert parse_bytes(found_in(shown, "a run needs")) == pytest.approx(parts, rel=0.01)


def found_in(shown, row):
    return re.search(rf"^{row} +([\d.]+ [KM]?i?B)", shown, re.MULTILINE)[1]


@dear
def test_the_line_that_it_prints_is_a_plan_that_fits(ask):
    code, shown, _ = ask(f"net.py:compiled --device {DEVICE} --batch {BATCH} --memory 1300KiB")
    assert code == 0
    at = json.loads(re.search(r"at=(\[.*\])\)", shown)[1].replace("'", '"'))
    plain, x = plain_step()
    model = kr.checkpointed(plain, at=at)
    model.compile("adamw", "mse")
    assert kr.liveness.profile(model, x, x).run_bytes <= 1300 * 2**10
    largest, beyond = map(int, re.search(r"Largest batch.*: (\d+); (\d+) needs", shown).groups())
    assert BATCH <= largest < beyond


@dear
def test_what_does_not_fit_says_by_how_much(ask):
    code, shown, error = ask(f"net.py:build --device {DEVICE} --batch {BATCH} --memory 300KiB")
    assert (code, error) == (1, "")
    assert re.search(r"No: with the leanest checkpoints .* more than there is", shown)
    # The weights and their states alone are 293 KiB.
    assert "Largest batch, with the leanest checkpoints: none; 1 needs" in shown


@dear
def test_lengths_and_adapters(ask):
    code, shown, _ = ask(f"net.py:sequences --device {DEVICE} --batch 2 --length 128 --lora 2")
    assert code == 0
    # 50 x 16 numbers, and 16 x 50 + 50; adapters of 50 x 2 + 2 x 16, and 16 x 2 + 2 x 50.
    assert "tokens, 1,914 weights. SGD, its loss, batch 2 of 128" in shown
    code, _, error = ask(f"net.py:sequences --device {DEVICE} --batch 2")
    assert code == 2
    assert "give --length" in error


@dear
def test_where_a_class_chooses_no_layer_all_are_adapted(ask):
    line = f"net.py:adapts_nothing --device {DEVICE} --batch {BATCH} --lora 2 --no-search"
    code, shown, _ = ask(line)
    assert code == 0
    # Adapters of 64 x 2 + 2 x 64 and a bias of 64 in each layer; two states for each number.
    states = 2 * 4 * DEPTH * (2 * 2 * WIDTH + WIDTH)
    assert parse_bytes(found_in(shown, "optimizer")) == pytest.approx(states, rel=0.01)


@dear
def test_weights_are_quantized_below_adapters(ask):
    line = f"net.py:build --device {DEVICE} --batch {BATCH} --lora 2 --no-search --quantize int8"
    code, shown, error = ask(line)
    assert (code, error) == (0, "")
    # Kernels of a byte; a scale, a bias and adapters of 64 x 2 + 2 x 64 numbers in each layer.
    weights = DEPTH * (WIDTH * WIDTH + 4 * (WIDTH + WIDTH + 2 * 2 * WIDTH))
    assert parse_bytes(found_in(shown, "weights")) == pytest.approx(weights, rel=0.01)


def test_inputs_have_lengths_of_their_own(ask):
    line = f"net.py:sums --device {DEVICE} --batch 2 --length 8 --length long=1000 --no-search"
    code, shown, _ = ask(line)
    assert code == 0
    # Two samples of 1,000 and of 8 steps of 4 numbers of 4 bytes.
    assert parse_bytes(found_in(shown, "batch")) == pytest.approx(2 * 1008 * 16, rel=0.01)
    code, _, error = ask(line.replace("long=", "wide="))
    assert code == 2
    assert "--length wide=1000: the model has no input 'wide', but long, short" in error


@pytest.mark.parametrize("form", ["keras", "json"])
def test_a_file_is_read_without_its_weights(ask, tmp_path, form):
    model, _ = plain_step()
    model.save(tmp_path / "net.keras")
    config = json.dumps(keras.saving.serialize_keras_object(model))
    (tmp_path / "net.json").write_text(config)
    code, shown, _ = ask(f"net.{form} --device {DEVICE} --batch {BATCH} --no-search")
    assert code == 0
    assert "net, 24,960 weights. AdamW, its loss" in shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("net.py:none --device local --batch 2", "net.py has no function 'none'"),
        ("net.py:number --device local --batch 2", "returns 3 (int), and not a Keras model"),
        ("net.py:broken --device local --batch 2", "net.py:broken: KeyError: 'weights'"),
        ("nothing --device local --batch 2", "'nothing' is no model: give a .keras file"),
        ("none.keras --device local --batch 2", "none.keras: FileNotFoundError"),
        ("net.py:build --device h10 --batch 2", "did you mean 'h100'"),
        ("net.py:build --device local --batch 0", "0 is too small: the least is 1"),
        ("net.py:build --device local --batch 2 --dtype float3", "--dtype float3: ValueError"),
        ("net.py:build --device local --batch 2 --memory much", "much"),
        ("net.py:build --device h100 --batch 2 --timeout much", "much"),
        ("net.py:build --device local --batch 2 --devices 2x", "'' is not a whole number"),
        (
            "net.py:build --device local --batch 2 --devices 2x2",
            "JAX was started with 1 here" if BACKEND == "jax" else "on Keras's JAX backend alone",
        ),
    ],
)
def test_bad_input_is_one_line(ask, line, said):
    code, _, error = ask(line.replace("local", DEVICE))
    assert code == 2
    assert error.count("\n") == 1
    assert said in error


def test_the_guide_runs():
    page = Path(__file__).parents[2] / "docs" / "full-size.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(block, {})
