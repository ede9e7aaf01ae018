"""The script beside the Poplar SDK: Python 3.8, TensorFlow 2.6 and a double of the SDK.

The double logs every call.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from keras_recompute.liveness import Program

from .sdk.environment import find, put_double

ROOT = Path(__file__).parents[2]
SMALL = (
    "--units 5 --features 3 --batch-size 2 --gradient-accumulation 2 --steps-per-epoch 4 --seed 3"
).split()


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    """Return a function that runs Python 3.8 beside the double.

    It returns exit code, output, errors, and the calls.
    """
    found = find()
    if isinstance(found, str):
        pytest.skip(found)
    python, tensorflow = found
    double = put_double(tensorflow, tmp_path_factory.mktemp("double"))

    def run(folder: Path, *command: str, **environment: str):
        calls = folder / "calls"
        calls.write_text("")
        done = subprocess.run(
            [python, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={
                **{
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(("TF_POPLAR", "POPLAR"))
                },
                "PYTHONPATH": os.pathsep.join([str(double), str(ROOT)]),
                "SDK_DOUBLE_CALLS": str(calls),
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **environment,
            },
        )
        return (
            done.returncode,
            done.stdout,
            done.stderr,
            [tuple(json.loads(line)) for line in calls.read_text().splitlines()],
        )

    return run


def expected_calls(
    *, cell: str, recompute: bool, flags: str | None, optimizer: str
) -> list[tuple[str, dict]]:
    """What is documented to be called, in this order, for 7 steps in sections of 4 and 3."""
    # Each update is an epoch.
    per_epoch = {"steps_per_epoch": 2, "shuffle": False, "verbose": 0}
    updates = {"initial_epoch": 0, "epochs": 2, **per_epoch}
    states = {"PopnnLSTM": [[2, 5], [2, 5]], "PopnnGRU": [[2, 5]]}[cell]
    return [
        ("IPUConfig", {}),
        ("IPUConfig.auto_select_ipus", {"value": 1}),
        ("IPUConfig.allow_recompute", {"value": recompute}),
        ("configure_ipu_system", {"device": "cpu", "flags": flags}),
        ("IPUStrategy", {}),
        ("scope", {}),
        ("PipelineStage", {"stage": 0}),
        (cell, {"units": 5, "stage": 0, "return_sequences": True, "return_state": True}),
        (f"call {cell}", {"inputs": [2, 4, 3], "states": None}),
        ("RecomputationCheckpoint", {"inputs": states}),
        (f"call {cell}", {"inputs": [2, 3, 3], "states": states}),
        ("PipelineStage", {"stage": 1}),
        ("Model", {}),
        ("compile", {"optimizer": optimizer, "steps_per_execution": 2}),
        (
            "set_pipelining_options",
            {
                "accumulate_outfeed": None,
                "gradient_accumulation_steps_per_replica": 2,
                "device_mapping": [0, 0],
                "gradient_accumulation_reduction_method": "sum",
                "pipeline_schedule": "Sequential",
                "recomputation_mode": "RecomputeAndBackpropagateInterleaved",
            },
        ),
        ("end of scope", {}),
        ("scope", {}),
        ("fit", updates),
    ]


def before_tracing(calls: list) -> list:
    """Return the calls up to fit: what comes then is Keras tracing the model."""
    return calls[: [name for name, _ in calls].index("fit") + 1]


def test_on_an_ipu_with_a_report(sdk, tmp_path):
    """The figures are those of the report: the larger of the two compiled programs."""
    command = [str(ROOT / "recompute_lstm.py"), "--target", "ipu", "--data", "constant", *SMALL]
    code, output, errors, calls = sdk(
        tmp_path, *command, *"--seq-len 7 --checkpoints 1 --report report --json out.json".split()
    )
    assert code == 0, errors
    assert before_tracing(calls) == expected_calls(
        cell="PopnnLSTM", recompute=True, flags=None, optimizer="SGD"
    )
    assert [c for c in calls if c[0] == "openReport"] == [
        ("openReport", {"name": "profile.pop"})
    ] * 2
    results = json.loads((tmp_path / "out.json").read_text())
    assert (results["target"], len(results["losses"]), results["completed"]) == ("ipu", 2, True)
    assert results["losses"][1] < results["losses"][0]
    always_live = 1472 * 2 * 1000
    assert (results["always_live_bytes"], results["peak_bytes"]) == (
        always_live,
        always_live + 950_000,
    )
    assert results["capacity_bytes"] == 1472 * 624 * 1024
    program = Program.read(tmp_path / "report" / "liveness.json")
    assert (program.compiled_by, program.program_steps) == ("Poplar 3.4.0 (double)", 3)
    assert program.peak_bytes == results["peak_bytes"]
    assert (tmp_path / "report" / "liveness.png").stat().st_size > 10_000
    assert "loss: " in output
    assert "peak: 3.71 MiB of the 897 MiB of a Mk2 IPU" in output
    assert len(list((tmp_path / "report" / "poplar").glob("tf_report__*/profile.pop"))) == 2


def test_on_the_ipu_model_by_way_of_the_stand_in(sdk, tmp_path):
    """``-m keras_recompute.ipu`` only logs a message beside the SDK (GRU, text)."""
    command = [
        "-m",
        "keras_recompute.ipu",
        str(ROOT / "recompute_lstm.py"),
        "--target",
        "ipu-model",
        "--cell",
        "gru",
    ]
    code, output, errors, calls = sdk(
        tmp_path, *command, *SMALL, *"--seq-len 7 --checkpoints 1 --no-recompute".split()
    )
    assert code == 0, errors
    assert (
        "installs nothing: this TensorFlow is the Poplar SDK's and has Graphcore's modules"
        in errors
    )
    assert before_tracing(calls) == expected_calls(
        cell="PopnnGRU", recompute=False, flags="--use_ipu_model", optimizer="Adam"
    )
    assert "loss: " in output
    assert not [c for c in calls if c[0] == "openReport"], "no report was asked for"


def test_the_suite_for_every_target_runs_beside_the_sdk(sdk, tmp_path):
    """``pytest --target ipu-model`` runs only tests that do not need stock TensorFlow."""
    code, output, _, calls = sdk(
        tmp_path,
        "-m",
        "pytest",
        "-q",
        "-m",
        "",
        "--target=ipu-model",
        "-p",
        "no:cacheprovider",
        str(ROOT),
    )
    assert (code, "2 passed" in output) == (0, True), output
    assert [name for name, _ in calls].count("fit") == 2


def test_auto_takes_the_ipu_and_xla_is_refused(sdk, tmp_path):
    ask = (
        "from lstm_example.arguments import choose_target as t; print(t('auto'), "
        "t('ipu-model')); t('xla')"
    )
    code, output, errors, _ = sdk(tmp_path, "-c", ask)
    assert (code, output) == (1, "ipu ipu-model\n")
    assert "TargetError: --target xla needs stock TensorFlow" in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [("{", "is not a JSON object"), ('{"autoReport.all": "false"}', "wrote no report")],
)
def test_reports_that_cannot_be_had(sdk, tmp_path, options, said):
    """One line each: an environment that Poplar cannot read, and one that requests no report."""
    command = [
        str(ROOT / "recompute_lstm.py"),
        "--data",
        "constant",
        *SMALL,
        "--seq-len",
        "7",
        "--checkpoints",
        "0",
    ]
    code, _, errors, calls = sdk(
        tmp_path, *command, "--report", "report", POPLAR_ENGINE_OPTIONS=options
    )
    assert code in (1, 2)
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert bool(calls) is (options != "{")
