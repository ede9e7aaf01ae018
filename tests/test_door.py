"""The public names, exactly, and what importing them does not load."""

import subprocess
import sys

import pytest

import keras_recompute

NAMES = {
    "GRU",
    "LSTM",
    "Model",
    "MultiHeadAttention",
    "RecomputationCheckpoint",
    "TimeSlice",
    "checkpoint",
    "checkpoint_name",
    "checkpointed",
    "forward_backward",
    "keep_scope",
    "plan",
    "policies",
    "print_forward_backward",
    "print_saved_residuals",
    "recompute_scope",
    "replay_count",
    "saved_residuals",
    "updates_in_backward",
}
ROOMS = {
    "compat",
    "distribute",
    "engine",
    "errors",
    "ipu",
    "layers",
    "liveness",
    "models",
    "planning",
    "report",
}


def test_the_public_names_are_these():
    assert set(keras_recompute.__all__) == NAMES | ROOMS
    for name in keras_recompute.__all__:
        assert getattr(keras_recompute, name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "Model",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("MultiHeadAttention", "RecomputationCheckpoint", "checkpoint", "policies")
        ),
    ],
)
def test_a_public_name_can_be_the_first_to_be_used(name):
    """Our classes are registered in the midst of Keras's import, by ``keras_registration``.

    Whichever of our modules asked for Keras.
    """
    code = f"import keras_recompute; assert keras_recompute.{name} is not None"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("keras_recompute", {"tensorflow", "keras"}),
        ("keras_recompute.planning", {"tensorflow", "keras", "numpy"}),
        ("keras_recompute.liveness", {"tensorflow", "keras", "google.protobuf"}),
        ("keras_recompute.report", {"tensorflow", "keras", "google.protobuf", "matplotlib"}),
    ],
)
def test_importing_loads_little(module, unloaded):
    code = f"import sys, {module}; found = {unloaded} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
