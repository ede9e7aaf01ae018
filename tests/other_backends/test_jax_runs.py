"""The allocator of a device on JAX, by a double: its peak is that since the process began."""

import pytest

from keras_recompute.errors import UnsupportedError
from keras_recompute.liveness import jax_runs

MIB = 2**20


class Allocator:
    """A device of JAX whose ``allocate`` counts bytes."""

    platform, device_kind = "gpu", "a GPU"

    def __init__(self, in_use, peak):
        self.in_use, self.peak = in_use, peak

    def allocate(self, size):
        self.in_use += size
        self.peak = max(self.peak, self.in_use)

    def memory_stats(self):
        return {"bytes_in_use": self.in_use, "peak_bytes_in_use": self.peak}


def measure(device, taken, reserved, monkeypatch):
    """Return what is measured of a block that takes so many bytes."""

    def zeros(shape, dtype, device):
        assert dtype == "uint8"
        device.allocate(shape[0] * shape[1])

    monkeypatch.setattr(jax_runs.jax.numpy, "zeros", zeros)
    with jax_runs.device_memory(device, reserved_bytes=reserved) as measured:
        device.allocate(taken)
    return measured


@pytest.mark.parametrize("peak", [3, 50, 90])
def test_a_peak_below_an_earlier_one_is_measured(peak, monkeypatch):
    measured = measure(Allocator(3 * MIB, peak * MIB), 10 * MIB, 8 * MIB, monkeypatch)
    assert measured.over_idle_bytes == 10 * MIB
    assert measured.method == "allocator of a GPU"


def test_less_than_half_of_what_was_said_is_not_measured(monkeypatch):
    measured = measure(Allocator(3 * MIB, 50 * MIB), 10 * MIB, 24 * MIB, monkeypatch)
    assert (measured.over_idle_bytes, measured.method) == (None, None)


def test_a_device_that_says_nothing_is_refused(monkeypatch):
    class Silent(Allocator):
        def memory_stats(self):
            return None

    monkeypatch.setattr(jax_runs.jax, "local_devices", lambda: [Silent(0, 0)])
    with pytest.raises(UnsupportedError, match=r"this GPU \(a GPU\) does not tell"):
        jax_runs.run_and_measure(None, ((), {}), reserved_bytes=0)
