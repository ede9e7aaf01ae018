"""Options and fixtures of the whole suite.

``--target ipu`` and ``ipu-model`` run beside the Poplar SDK, under its Python 3.8, the tests that
are marked ``ipus(n)``; the other targets run these and all the others.
"""

import atexit
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests keep both cores busy by themselves: NumPy's threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly all programs run once. What they hold and compute is settled before LLVM optimises their
# machine code, so it does not: a tenth of all time. XLA_FLAGS=--xla_backend_optimization_level=3
# has it done as for users.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    )
# Graphs are hundreds of thousands of objects that stay: looking for cycles among them often is
# another tenth.
gc.set_threshold(1_000_000, 20, 100)

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # beside the Poplar SDK
    pass
else:
    # A machine that does other work is slow at times, which says nothing about the code.
    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")


# The tests that run on Keras's other backends, where TensorFlow is not installed.
BACKEND = os.environ.get("KERAS_BACKEND") or "tensorflow"
OTHER_BACKENDS = {
    backend: [
        "tests/other_backends",
        "tests/doctor",
        "tests/fits/test_answers.py",
        "tests/test_abstract_models.py",
        "tests/test_refused_batches.py",
        "tests/example/test_saves.py",
        "tests/seams/test_keras_quantization.py",
        "tests/seams/test_keras_variables.py",
        *map(str, sorted(Path("tests/seams").glob(f"test_{backend}_*.py"))),
    ]
    for backend in ("jax", "torch")
}
# Many tests compile what others do too, such as the step of the same plain model. JAX finds a
# program in this folder, which all processes of a run share, and compiles it once: a third of the
# time of all tests.
if BACKEND == "jax" and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.mkdtemp(prefix="programs-of-tests-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_addoption(parser):
    parser.addoption(
        "--target",
        choices=("auto", "xla", "ipu", "ipu-model"),
        default="auto",
        help="where the tests of the example run: stock TensorFlow, or with the Poplar SDK an IPU "
        "or its simulator",
    )
    parser.addoption(
        "--ipus",
        type=int,
        default=1,
        metavar="N",
        help="IPUs of this machine, for --target ipu (1)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if config.getoption("--target").startswith("ipu"):
        config.option.numprocesses = 0  # one process holds the device


def pytest_configure(config):
    # What a shell starts in the background ignores Control-C, and so would the scripts that the
    # tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if tests_are_all(config) and BACKEND in OTHER_BACKENDS:
        config.args[:] = OTHER_BACKENDS[BACKEND]
    config.addinivalue_line(
        "markers", "ipus(n): the test runs on every target; on IPUs it needs n of them"
    )


def tests_are_all(config):
    """Whether no test or folder was named."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_terminal_summary(terminalreporter, config):
    others = [backend for backend in ("tensorflow", *OTHER_BACKENDS) if backend != BACKEND]
    if tests_are_all(config) and config.getoption("--target") == "auto":
        terminalreporter.write_line(
            f"These were the tests on Keras's backend {BACKEND}. For {' or '.join(others)} set "
            "KERAS_BACKEND, in an environment that has it (CONTRIBUTING.md)"
        )


def pytest_ignore_collect(collection_path, config):
    """Beside the SDK leave out what needs stock TensorFlow, before it is imported."""
    is_other = collection_path.suffix == ".py" and collection_path.name not in (
        "conftest.py",
        "test_every_target.py",
    )
    return True if is_other and config.getoption("--target").startswith("ipu") else None


# CI runs one in 35 of a test's long cases, and all that are marked ``long(every_case=True)``. Lists
# of modes have two or three entries, and 35 is a multiple of neither, so that all modes are among
# those that run.
CASES_PER_ONE_IN_CI = 35


def mark_exhaustive_cases(items):
    """Mark the long cases that CI leaves out as ``exhaustive``, in tests that do not do so
    themselves.

    CI keeps the last case of each test, which is often that with jit or with all options, and
    every 35th case before it. Cases marked ``long(every_case=True)`` are not counted: it keeps all.
    """
    cases = {}
    for item in items:
        if item.get_closest_marker("exhaustive") or any(
            not mark.kwargs.get("every_case") for mark in item.iter_markers("long")
        ):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        if not any(item.get_closest_marker("exhaustive") for item in of_one_test):
            for number, item in enumerate(reversed(of_one_test)):
                if number % CASES_PER_ONE_IN_CI:
                    item.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish():
    # Modules and tests stay until the end: no search for cycles goes through them again.
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before the marks select
def pytest_collection_modifyitems(config, items):
    mark_exhaustive_cases(items)
    # Dear tests first, so that no process waits for another one's at the end.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    there = config.getoption("--ipus")
    for item in items:
        marker = item.get_closest_marker("ipus")
        if marker and config.getoption("--target") == "ipu" and marker.args[0] > there:
            item.add_marker(
                pytest.mark.skip(
                    reason=f"needs {marker.args[0]} IPUs; --ipus says that there are {there}"
                )
            )


_collected_at = [0]


def pytest_runtest_teardown():
    # Reference cycles hold the models of past tests, and the thresholds above hardly ever look for
    # them. So they are collected each time that the process has grown by another GiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    if peak > _collected_at[0] + 2**20:
        gc.collect()
        _collected_at[0] = peak


@pytest.fixture
def target(request):
    """The target that was asked for."""
    return request.config.getoption("--target")


@pytest.fixture(autouse=True)
def _seeded():
    """Start every test from the same seeds, without loading TensorFlow for tests that do not use
    it.
    """
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)
