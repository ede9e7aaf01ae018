"""The memory of a training step that runs on PyTorch, by the process and by a GPU's allocator."""

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError

L = keras.layers
MIB = 2**20
X = np.ones((4096, 256), "float32")


def model(every=None):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((256,))
    for _ in range(6):
        x = L.Dense(256, "tanh")(x)
    made = keras.Model(inputs, L.Dropout(0.1)(x))
    made = kr.checkpointed(made, every=every) if every else made
    made.compile("adam", "mse", jit_compile=False)
    return made


def test_the_process_takes_what_the_record_says():
    """Six results of 4 MiB each, which are freed and taken again in each step."""
    measured, recorded = [], []
    for every in (None, 2):
        trained = model(every)
        before = [v.numpy().copy() for v in trained.variables] if every else None
        record = kr.liveness.profile(trained, X, X, device="local")
        assert "process" in record.measured_by
        measured.append(record.measured_bytes / MIB)
        recorded.append((record.peak_bytes - record.always_live_bytes) / MIB)
        for variable, value in zip(trained.variables, before or []):
            np.testing.assert_array_equal(variable.numpy(), value)
    assert recorded[0] > 6 * 4
    for ran, said in zip(measured, recorded):
        assert 0.7 * said < ran < 3 * said  # the C library keeps free pieces between others


def test_a_gpu_s_allocator_is_asked_where_there_is_one(monkeypatch):
    """With a double of its statistics: 3 MiB before a step, 10 at its peak."""
    asked = []
    doubles = {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: asked.append("reset"),
        "memory_allocated": lambda: 3 * MIB,
        "max_memory_allocated": lambda: 10 * MIB,
        "get_device_name": lambda: "a GPU",
        "mem_get_info": lambda: (70 * MIB, 80 * MIB),
    }
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    record = kr.liveness.profile(model(), X[:8], X[:8], device="local")
    assert asked == ["reset"]
    assert record.measured_bytes == 7 * MIB
    assert record.measured_by == "the allocator of a GPU"
    assert record.capacity_bytes == 80 * MIB


def test_a_function_is_recorded_and_not_run():
    with pytest.raises(UnsupportedError, match="model alone on PyTorch"):
        kr.liveness.profile(torch.sin, torch.ones(3), device="local")
