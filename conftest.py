"""Options and fixtures of the whole suite. The same tests run on every target that the machine has."""

import os
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_addoption(parser):
    parser.addoption(
        "--target",
        choices=("auto", "xla", "ipu", "ipu-model"),
        default="auto",
        help="where the tests of the example run: stock TensorFlow, or with the Poplar SDK an IPU or its simulator",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if config.getoption("--target").startswith("ipu"):
        config.option.numprocesses = 0  # one process holds the device


def pytest_configure(config):
    config.addinivalue_line("markers", "ipus(n): the test needs n IPUs; the stand-in has one device")


def pytest_collection_modifyitems(config, items):
    for item in items:
        marker = item.get_closest_marker("ipus")
        if marker and marker.args[0] > 1 and config.getoption("--target") in ("auto", "xla"):
            item.add_marker(pytest.mark.skip(reason=f"needs {marker.args[0]} IPUs; the stand-in has one device"))


@pytest.fixture
def target(request):
    """The target that was asked for."""
    return request.config.getoption("--target")


@pytest.fixture(autouse=True)
def _seeded():
    """Start every test from the same seeds, without loading TensorFlow for tests that do not use it."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)
