"""The compilers themselves, where they are: installed here, or for what
KERAS_RECOMPUTE_DEVICES_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness.device_compilers import compile_for, find_device
from keras_recompute.liveness.device_compilers.compiler import PYTHON, versions_of
from keras_recompute.models.measures.trained_step import trained_step

ROOT = Path(__file__).parents[3]
ALL = [device.name for device in kr.liveness.devices()]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_RECOMPUTE_CACHE", str(tmp_path / "cache"))


def skip_without_compiler(device: str) -> None:
    if len(versions_of(os.environ.get(PYTHON) or sys.executable, find_device(device).backend)) < 3:
        pytest.skip(
            'the compilers of devices are not installed: pip install "keras-recompute[devices]"'
        )


def network(sections: int = 4) -> keras.Model:
    x = inputs = keras.Input((64, 16), batch_size=8)
    layer, state, outputs = kr.LSTM(32, return_sequences=True, return_state=True), None, []
    for begin in range(0, 64, 64 // sections):
        y, *state = layer(kr.TimeSlice(begin, begin + 64 // sections)(x), initial_state=state)
        outputs.append(y)
        if len(outputs) < sections:
            state = kr.RecomputationCheckpoint()(state)
    x = keras.layers.Dense(1)(keras.layers.Concatenate(axis=1)(outputs))
    model = kr.Model(inputs, x)
    model.compile("adam", "mse", jit_compile=True)
    return model


@pytest.mark.long
@pytest.mark.parametrize("device", ALL)
def test_a_training_step_is_compiled_for_each_device_and_every_byte_is_found(device):
    skip_without_compiler(device)
    program = kr.liveness.profile(
        network(), tf.TensorSpec((8, 64, 16)), tf.TensorSpec((8, 64, 1)), device=device
    )
    assert program.capacity_bytes == find_device(device).memory_bytes
    assert find_device(device).title in program.compiled_by
    stated = program.compiler_totals["stated_temp_bytes"]
    # Results in storage of their own
    assert 0 < program.not_always_live_peak_bytes <= stated + 1024
    assert [
        row.name for row in kr.liveness.reconcile(program) if row.explanation == "unexplained"
    ] == []
    assert {"forward", "recompute", "backward", "update"} <= {step.phase for step in program.steps}
    if find_device(device).backend == "gpu":
        assert program.compiler_totals["branches_taken"] == 0


@pytest.mark.long
@pytest.mark.parametrize("device", ["h100", "v5e", "v5p"])
def test_a_program_for_eight_devices_is_what_each_of_them_runs(device):
    skip_without_compiler(device)
    module = b"""
module @divided attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=8]>
  func.func public @main(
    %rows: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %weights: tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
  ) -> (tensor<512x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %product = stablehlo.dot_general %rows, %weights, contracting_dims = [1] x [0]
      : (tensor<512x512xf32>, tensor<512x256xf32>) -> tensor<512x256xf32>
    return %product : tensor<512x256xf32>
  }
}"""
    made = compile_for(find_device(device), module, timeout_seconds=300, is_stablehlo=True)
    # An eighth of the rows, and all weights, of four bytes.
    assert made.statistics["argument"] == 4 * (512 * 512 // 8 + 512 * 256)
    assert made.statistics["output"] == 4 * 512 * 256 // 8
    assert f"for 8 x {find_device(device).title}" in made.compiler


@pytest.mark.long
def test_the_example_chooses_its_checkpoints_for_a_device(tmp_path):
    skip_without_compiler("v5e")
    asked = "--device v5e --checkpoints auto --memory-budget 24MiB --seq-len 256 "
    asked += "--units 64 --features 64 --data constant"
    report, figures = tmp_path / "report", tmp_path / "run.json"
    command = [
        sys.executable,
        "recompute_lstm.py",
        *asked.split(),
        "--report",
        str(report),
        "--json",
        str(figures),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert found["device"] == "v5e"
    assert found["needed_bytes"] <= 24 * 2**20 < found["capacity_bytes"] == 16 * 2**30
    assert "of the 16.0 GiB of the TPU v5e" in done.stdout
    assert found["losses"] == []
    assert (report / "liveness.png").exists()


@pytest.mark.long
def test_a_plan_is_proved_on_the_device_that_it_is_for():
    skip_without_compiler("h100")
    x = inputs = keras.Input((256,))
    for _ in range(12):
        x = keras.layers.Dense(256, "relu")(x)
    plain = keras.Model(inputs, x)
    _, whole = kr.plan(plain, memory_budget="device", device="h100", batch_size=4096)
    assert (whole.checkpoints, whole.budget_bytes) == ((), find_device("h100").memory_bytes)
    model, found = kr.plan(
        plain, memory_budget=int(0.85 * whole.compiled_peak_bytes), device="h100", batch_size=4096
    )
    assert found.checkpoints
    assert found.compiled_peak_bytes <= found.budget_bytes
    compiled = trained_step(plain, tf.TensorSpec((4096, 256))).compiled(model, device="h100")
    assert compiled.needed_bytes == found.compiled_peak_bytes


def test_what_a_tpu_has_no_room_for_says_what_it_needs():
    skip_without_compiler("v5e")

    def step(x):
        whole = tf.matmul(x, x, transpose_b=True)
        return tf.sort(whole) + tf.transpose(whole)

    with pytest.raises(kr.errors.DoesNotFitError) as raised:
        kr.liveness.profile(step, tf.TensorSpec((65536, 8)), device="v5e")
    # The product, sorted, and turned: 65536 * 65536 * 4 bytes each
    assert raised.value.needed_bytes == 48 * 2**30
