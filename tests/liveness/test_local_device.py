"""The device that is here: what a run takes beside the compiler's figures, what it leaves alone,
and what it has.
"""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
import recompute_lstm
from keras_recompute.liveness import local_device
from keras_recompute.report import summary_rows

MIB = 2**20


def network(width: int = 512, layers: int = 6) -> keras.Model:
    x = inputs = keras.Input((width,))
    for _ in range(layers):
        x = keras.layers.Dense(width, "relu")(x)
    model = kr.checkpointed(keras.Model(inputs, keras.layers.Dropout(0.1)(x)), every=2)
    model.compile("adam", "mse", jit_compile=True)
    return model


@pytest.mark.long
def test_a_training_step_is_measured_while_it_runs_and_trains_nothing():
    model, batch = network(), (np.ones((4096, 512), np.float32), np.ones((4096, 512), np.float32))
    model.train_on_batch(*batch)
    before = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
    program = kr.liveness.profile(model, *batch, device="local")
    for old, variable in zip(before, (*model.variables, *model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(variable, old, err_msg=variable.path)
    reserved = program.allocated_temporary_bytes
    assert reserved > 40 * MIB
    assert program.measured_by in ("the process (VmHWM)", "the process (sampled)")
    assert 0.8 * reserved < program.measured_bytes < reserved + 40 * MIB
    assert program.compiled_by == f"XLA of tensorflow {tf.__version__} for the CPU here"
    assert program.capacity_bytes == local_device.machine_bytes()
    assert kr.liveness.Program.from_json(program.to_json()) == program
    assert "by the process" in dict(summary_rows(program))["measured while it ran"]


def test_a_failing_run_leaves_variables_as_they_were():
    variable = tf.Variable(1.0)

    def fails(x):
        variable.assign_add(x)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        local_device.run_and_measure(fails, (tf.TensorSpec(()),), {}, [variable], reserved_bytes=0)
    assert variable.numpy() == 1.0


def test_a_gpu_has_what_tensorflow_may_take_of_it(monkeypatch):
    """A double of the GPU: its name is what its driver says, its memory what the session states of
    the first one.
    """
    gpus = [
        SimpleNamespace(name=f"/job:localhost/replica:0/task:0/device:GPU:{n}", device_type="GPU")
        for n in (0, 1)
    ]
    sizes = {"GPU:0": 70 * 2**30, "GPU:1": 5}

    class Session(contextlib.nullcontext):
        def __init__(self, graph):  # noqa: ARG002
            super().__init__(self)

        def list_devices(self):
            return [
                SimpleNamespace(
                    name=g.name, device_type="GPU", memory_limit_bytes=sizes[g.name[-5:]]
                )
                for g in gpus[::-1]
            ]

    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _=None: gpus)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _=None: gpus)
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda _: {"device_name": "a double"}
    )
    monkeypatch.setattr(tf.compat.v1, "Session", Session)
    found = local_device.local_device()
    assert (found.title, found.backend, found.memory_bytes) == ("a double", "gpu", 70 * 2**30)


GPU = pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU here")
ON_GPU = {
    "dense": (lambda: network(1024), (4096, 1024), (4096, 1024)),
    "MobileNetV3Small": (
        lambda: application(keras.applications.MobileNetV3Small),
        (32, 64, 64, 3),
        (32, 10),
    ),
    "ResNet50": (lambda: application(keras.applications.ResNet50), (32, 64, 64, 3), (32, 10)),
}


def application(family) -> keras.Model:
    model = kr.checkpointed(family(weights=None, input_shape=(64, 64, 3), classes=10), every=12)
    model.compile("adam", "mse", jit_compile=True)
    return model


@GPU
@pytest.mark.long
@pytest.mark.parametrize("name", ON_GPU)
def test_on_a_gpu_what_its_allocator_took_is_what_was_compiled(name):
    make, x, y = ON_GPU[name]
    program = kr.liveness.profile(make(), tf.TensorSpec(x), tf.TensorSpec(y), device="local")
    assert program.measured_by == "the allocator of GPU:0"
    assert (
        abs(program.measured_bytes - program.allocated_temporary_bytes)
        <= 0.15 * program.allocated_temporary_bytes
    )


@GPU
@pytest.mark.long
@pytest.mark.parametrize("name", ON_GPU)
def test_a_gpu_that_is_described_takes_what_one_that_is_here_does(name):
    """Where the one that is here is among those that can be described, and its compiler is
    installed.
    """
    make, x, y = ON_GPU[name]
    here = local_device.local_device()
    described = next(
        (device for device in kr.liveness.devices() if device.title == here.title), None
    )
    if described is None:
        pytest.skip(f"{here.title} is none of those that are described")
    specs = tf.TensorSpec(x), tf.TensorSpec(y)
    try:
        there = kr.liveness.profile(make(), *specs, device=described.name)
    except kr.errors.DeviceError as error:
        pytest.skip(str(error))
    local_bytes = kr.liveness.profile(make(), *specs, device="local").allocated_temporary_bytes
    assert abs(there.allocated_temporary_bytes - local_bytes) <= 0.15 * local_bytes


@GPU
@pytest.mark.long
def test_on_a_gpu_the_example_says_what_its_allocator_took(tmp_path):
    figures = tmp_path / "run.json"
    assert (
        recompute_lstm.main(
            ["--data", "constant", "--quiet", "--epochs", "2", "--json", str(figures)]
        )
        == 0
    )
    found = json.loads(figures.read_text())
    assert (
        abs(found["device_peak_bytes"] - found["allocated_temporary_bytes"])
        <= 0.15 * found["allocated_temporary_bytes"]
    )
