"""Try the installed package: train, save, load, and run its command, on the backend that is here.

    KERAS_BACKEND=jax python3 .ci/installed.py

Neither the checkout nor another backend may be there: what is missing in the wheel or in its extra
then fails.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_recompute as kr

BACKEND = keras.config.backend()
SCRIPT = """
import keras, numpy as np
layers = [keras.layers.Dense(64, "gelu") for _ in range(9)]
model = keras.Sequential([keras.Input((64,)), *layers])
model.compile("adam", "mse")
model.fit(np.zeros((512, 64)), np.zeros((512, 64)), batch_size=512)
"""


def build() -> keras.Model:
    """Return a model of nine layers, the same each time."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, "gelu") for _ in range(9)]
    return keras.Sequential([keras.Input((64,)), *layers])


def train(model: keras.Model, x: np.ndarray) -> list[np.ndarray]:
    """Return the weights after two steps."""
    model.compile("adam", "mse")
    model.fit(x, x, batch_size=512, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def main() -> None:
    """Try it; an assertion or an error says what is missing."""
    others = {"tensorflow", "jax", "torch"} - {BACKEND}
    assert not [name for name in others if importlib.util.find_spec(name)], others
    assert "site-packages" in kr.__file__, kr.__file__
    x = np.random.default_rng(0).standard_normal((512, 64)).astype("float32")
    plain, model = build(), kr.checkpointed(build(), every=3)
    for expected, found in zip(train(plain, x), train(model, x)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    before, after = (kr.liveness.profile(each, x, x).peak_bytes for each in (plain, model))
    assert after < 0.8 * before, (before, after)

    command = Path(sys.executable).with_name("keras-recompute")
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.saving.load_model(f"{folder}/model.keras")
        assert loaded.plan.checkpoints == model.plan.checkpoints
        Path(folder, "train.py").write_text(SCRIPT)
        for arguments in (["--version"], ["doctor", "train.py"]):
            subprocess.run([command, *arguments], cwd=folder, env={**os.environ}, check=True)
    print(f"installed: {kr.__version__} on {BACKEND}, peak {before} -> {after} bytes")


if __name__ == "__main__":
    main()
