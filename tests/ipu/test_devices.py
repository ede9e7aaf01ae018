"""The devices of a configuration, and their memory (Graphcore: IPUConfig and hardware)."""

from __future__ import annotations

import pytest

from keras_recompute.ipu.configuration import config as ours
from keras_recompute.ipu.configuration.config import IPUConfig
from keras_recompute.ipu.configuration.device import target_of

KIB, MIB = 1024, 1024 * 1024


@pytest.fixture
def config():
    yield IPUConfig()
    ours.reset_ipu_configuration()


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({}, (1,)),
        ({"auto_select_ipus": 2}, (2,)),
        ({"auto_select_ipus": (1, 2)}, (1, 2)),
        ({"select_ipus": 0}, (1,)),
        ({"select_ipus": [15, 16, 24, 28, 30]}, (1, 2, 4, 8, 16)),
    ],
)
def test_devices_by_count(config, options, devices):
    for name, value in options.items():
        setattr(config, name, value)
    config.configure_ipu_system()
    assert ours.devices() == devices


@pytest.mark.parametrize(
    ("version", "tiles_per_ipu", "tiles", "memory"),
    [
        ("ipu1", 0, 1216, 304 * MIB),
        ("ipu2", 0, 1472, 897 * MIB),
        ("ipu2", 4, 4, 4 * 624 * KIB),
        ("ipu1", 16, 16, 4 * MIB),
    ],
)
def test_capacities(config, version, tiles_per_ipu, tiles, memory):
    """Section 8: tiles times KiB per tile; 1216 x 256 KiB = 304 MiB, 1472 x 624 KiB = 897 MiB."""
    config.ipu_model.version, config.ipu_model.tiles_per_ipu = version, tiles_per_ipu
    assert (target_of(config).tiles, target_of(config).memory_bytes) == (tiles, memory)
    config.auto_select_ipus = 2
    assert target_of(config).memory_bytes == 2 * memory
