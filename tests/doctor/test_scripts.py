"""``keras-recompute doctor`` on scripts: what it finds, what it runs, and what it refuses.

On the backend that Keras runs on: CI runs these tests on each.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from rich.console import Console

import keras_recompute as kr
from keras_recompute.doctor.command import main
from keras_recompute.sizes import parse_bytes

ROOT = Path(__file__).parents[2]
BACKEND = keras.config.backend()
WIDTH, DEPTH, BATCH = 64, 6, 256
MODEL = f"""
import keras
import numpy as np

def build():
    layers = [keras.layers.Dense({WIDTH}, "gelu", name=f"dense_{{n}}") for n in range({DEPTH})]
    return keras.Sequential([keras.Input(({WIDTH},)), *layers], name="net")

x = np.zeros(({BATCH} * 2 + 3, {WIDTH}))
model = build()
"""
COMPILE = "model.compile('adam', 'mse')\n"
FIT = f"model.fit(x, x, batch_size={BATCH})\n"
LOOP = """
optimizer = keras.optimizers.SGD()
def step():
    optimizer.apply([0 * v.value for v in model.trainable_variables], model.trainable_variables)
step()
"""
BEHIND = "open('behind', 'w').close()\n"


class Left(BaseException):
    """Stands for the end of the process."""


def left(code):
    raise Left(code)


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Ask about a script in a folder of its own; return code, output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", [*sys.path])

    def asked(source, line="train.py"):
        keras.backend.clear_session()
        (tmp_path / "train.py").write_text(source)
        shown = io.StringIO()
        try:
            code = main(line.split(), console=Console(file=shown, width=100), leave=left)
        except Left as at:
            (code,) = at.args
        return code, shown.getvalue(), capsys.readouterr().err

    return asked


@pytest.mark.long
def test_each_line_trains_in_the_memory_that_it_says(ask):
    code, shown, error = ask(MODEL + COMPILE + FIT + BEHIND)
    assert (code, error) == (0, "")
    assert not Path("behind").exists()
    assert "fit at train.py:12 (<module>) trains 'net', a Sequential, on float32(256, 64)" in shown
    names = {}
    exec(MODEL, names)
    plain, x = names["model"], np.zeros((BATCH, WIDTH))
    plain.compile("adam", "mse")
    peak = kr.liveness.profile(plain, x, x).peak_bytes
    assert size_in(shown, r"One step takes ([\d.]+ \w+)") == pytest.approx(peak, rel=0.01)
    # Six kernels of 64 x 64 numbers of four bytes, and six biases of 64; twice as much of Adam's.
    weights = 4 * DEPTH * (WIDTH * WIDTH + WIDTH)
    for kind, held in {"weight": weights, "optimiser": 2 * weights}.items():
        assert size_in(shown, rf"([\d.]+ \w+) +\d+%  {kind}") == pytest.approx(held, rel=0.01)
    assert re.search(r"%  (net/)?dense_4", shown)
    lines = re.findall(r"^# ([\d.]+ \w+), (\d+)% of .*\nmodel = (.*)$", shown, re.MULTILINE)
    assert len(lines) > 1
    # 2 is about the root of six layers.
    assert "kr.checkpointed(model, every=2)" in [line for *_, line in lines]
    for said, share, line in lines:
        model = eval(line, {"kr": kr, "model": plain})
        model.compile("adam", "mse")
        needed = kr.liveness.profile(model, x, x).peak_bytes
        assert parse_bytes(said) == pytest.approx(needed, rel=0.01)
        assert int(share) == round(100 * needed / peak) < 100


def size_in(shown, pattern):
    return parse_bytes(re.search(pattern, shown)[1])


def test_the_report_of_the_plain_step_is_written(ask, monkeypatch):
    pytest.importorskip("plotly", reason="pages need keras-recompute[report]")
    monkeypatch.setattr("keras_recompute.doctor.command._print_savings", lambda *_: None)
    code, shown, _ = ask(MODEL + COMPILE + FIT, "--report here train.py")
    assert code == 0
    assert "written: here/" in shown
    assert Path("here/liveness.html").exists()


@pytest.mark.long
def test_a_budget_that_no_plan_fits_is_refused(ask):
    code, shown, _ = ask(MODEL + COMPILE + FIT, "--memory-budget 20KiB train.py")
    assert code == 0
    assert re.search(r"No plan fits 20.0 KiB: the least is [\d.]+ [KM]iB", shown)


DATA_SETS = {
    "tensorflow": "import tensorflow as tf\n"
    "data = tf.data.Dataset.from_tensor_slices((x, x)).batch(9)\n",
    "torch": "import torch\n"
    "data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(x))\n"
    "data = torch.utils.data.DataLoader(data, batch_size=9)\n",
    "jax": "data = ((x[:9], x[:9]) for _ in range(2))\n",
}


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("fit(x, x, sample_weight=np.ones(515))", "(32, 64) (32, 64) (32,)"),
        ("fit(x, x, class_weight=None, validation_split=0.99)", "(5, 64) (5, 64)"),
        ("fit(x, batch_size=6)", "(6, 64)"),
        ("train_on_batch(x, x)", "(515, 64) (515, 64)"),
        ("fit(((a, a) for a in [x[:7]] * 3))", "(7, 64) (7, 64)"),
        ("fit(data)", "(9, 64) (9, 64)"),
        ("fit(Batches())", "(3, 64) (3, 64)"),
    ],
)
def test_any_data_give_the_batch_of_fit(call, batch, ask, monkeypatch):
    monkeypatch.setattr("keras_recompute.doctor.command._examine", lambda step, *_: sizes_in(step))
    before = f"""{DATA_SETS[BACKEND]}
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return x[:3], x[:3]

"""
    said, _, error = ask(f"{MODEL}{before}{COMPILE}model.{call}\n")
    assert error == ""
    assert said == batch


def sizes_in(step):
    return " ".join(str(tuple(leaf.shape)) for leaf in keras.tree.flatten(step.batch))


@pytest.mark.long
def test_a_call_of_the_class_s_own(ask):
    own = """
class Doubled(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.blocks = [keras.layers.Dense(64, "gelu") for _ in range(8)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return 2 * x

model = Doubled(model)
"""
    code, shown, error = ask(MODEL + own + COMPILE + FIT)
    assert (code, error) == (0, "")
    assert "compiled: its own training step" in shown
    assert "; (x, y) is a batch:" in shown
    said, lines = re.search(
        r"^# ([\d.]+ \w+), .*\n(model\(x\).*\nmodel = .*)$", shown, re.M
    ).groups()
    keras.backend.clear_session()  # layers have the names that they have in the script
    names = {"kr": kr}
    exec(f"{MODEL}{own}{lines}", names)
    model, x = names["model"], np.zeros((BATCH, WIDTH))
    model.compile("adam", "mse")
    needed = kr.liveness.profile(model, x, x).peak_bytes
    assert parse_bytes(said) == pytest.approx(needed, rel=0.01)


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("", "", "the following arguments are required: SCRIPT"),
        ("", "none.py", "'none.py' is no file"),
        ("", "--memory-budget much train.py", "a size in bytes was expected, not 'much'"),
        ("", "--report", "expected one argument"),
        ("", "train.py:main", "train.py has no function 'main'"),
        ("", "no_module:main", "ModuleNotFoundError: No module named 'no_module'"),
        ("", "train.py", "train.py ended without a call of Keras's fit"),
        ("import sys\nsys.exit(3)", "train.py", "train.py ended with 3 before"),
        ("1 +", "train.py", "train.py:1: SyntaxError"),
        ("\nopen('no file')", "train.py", "train.py:2: FileNotFoundError"),
        (MODEL + FIT, "train.py", "is not compiled with an optimizer"),
        (
            MODEL + COMPILE + "model.fit(x, x[:, :5])",
            "train.py",
            "the step of train.py cannot be traced: ",  # the error is the backend's
        ),
        (MODEL + COMPILE + "model.trainable = False\n" + FIT, "train.py", "no trainable weights"),
        (MODEL + LOOP, "train.py", "its own, which updates weights at train.py:14 (step)"),
        (MODEL + COMPILE + FIT, "--device h10 train.py", "did you mean 'h100'"),
    ],
)
def test_bad_input_is_one_line(source, line, said, ask):
    code, shown, error = ask(source, line)
    assert (code, shown) == (2, "")
    assert error.count("\n") == 1
    assert said in error


def test_arguments_are_the_script_s(ask):
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\n"
    code, _, error = ask(f"{parser}assert p.parse_args().n == 4\n", "train.py --n 4")
    assert code == 2
    assert "ended without a call" in error
    code, _, error = ask(f"{parser}p.parse_args()", "train.py --device none")
    assert code == 2
    assert "unrecognized arguments: --device none" in error  # as argparse says it
    assert "ended with 2 before" in error


def test_a_model_with_checkpoints_says_so(ask):
    placed = "import keras_recompute as kr\nmodel = kr.checkpointed(model, every=2)\n"
    code, shown, error = ask(MODEL + placed + COMPILE + FIT)
    assert (code, error) == (0, "")
    assert re.search("No plan: .* already: plan a model without them", shown)


@pytest.mark.long
def test_the_process_ends_at_fit(tmp_path):
    """Whatever the script catches, in the process as users start it; the backend is its choice."""
    (tmp_path / "train.py").write_text(
        "import os\n"
        f"os.environ['KERAS_BACKEND'] = '{BACKEND}'\n"
        f"import {BACKEND}\n"
        f"{MODEL}{COMPILE}"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        model.fit(x, x)\n"
        "    except BaseException:\n"
        f"        {BEHIND}"
        "    finally:\n"
        f"        {BEHIND}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "keras_recompute", "doctor", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "no_such_backend"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "model = kr.checkpointed(model, every=2)" in done.stdout
    assert not (tmp_path / "behind").exists()
