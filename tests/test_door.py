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


# What 0.2.0 had beside the names above.
OF_0_2_0 = {
    "compat": "checkpointable gradient_checkpoint_scope recompute_grad",
    "distribute": "join launch",
    "errors": """ClusterError DeviceError DoesNotFitError InvalidArgumentError InvalidPlanError
        InvalidProgramError RecomputeError RecomputeWarning ReportError TargetError
        UnsupportedError""",
    "ipu": "has_sdk install uninstall",
    "liveness": """Buffer CompiledProgram Device IpuTarget MeasuredMemory Parameter Profile Program
        Step Timeline capture_fit compile_program device_memory devices forget_free_memory
        is_profile_pop process_memory profile read_hlo_proto read_popvision read_profile_pop
        reconcile write_profile_pop""",
    "planning": "BudgetTooSmallError Chain predicted_peak_bytes section_lengths",
    "report": """MemoryRow category_rows comparison_figure export_csv export_trace export_xprof
        liveness_figure memory_rows phase_spans print_liveness print_memory section_spans
        summary_rows write_page write_report""",
}


@pytest.mark.parametrize("room", OF_0_2_0)
def test_a_name_that_was_public_stays(room):
    module = getattr(keras_recompute, room)
    missing = [name for name in OF_0_2_0[room].split() if not hasattr(module, name)]
    assert missing == []
