"""The compiler of a device as a process: what it is asked, what is kept of its answers, and how it
fails.

A double stands for the interpreter that has JAX: it answers what the real compiler once answered
for a small network.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import DeviceError, DoesNotFitError
from keras_recompute.liveness.device_compilers import cache
from keras_recompute.liveness.device_compilers import worker as compiling
from keras_recompute.liveness.device_compilers.compiler import PYTHON
from keras_recompute.liveness.device_compilers.limits import CompileLimits, compile_limits

WORKER = Path(compiling.__file__)
MLP = Path(__file__).with_name("mlp_h100.hlo_proto.pb.gz")
DOUBLE = f"""#!{sys.executable}
import gzip, json, os, sys, time
from pathlib import Path

if sys.argv[1] == "-c":
    print(json.dumps({{"jax": "1", "jaxlib": "2", "libtpu": "3", "jax-cuda12-pjrt": "4"}}))
    sys.exit()
request = json.loads(Path(sys.argv[2]).read_text())
folder = Path(request["folder"])
with open(Path(__file__).with_name("asked"), "a") as asked:
    asked.write(json.dumps(request["topology"]) + "\\n")
answer = {{"seconds": 1.5, "statistics": {{"temp": 12848}}}}
how = os.environ["DOUBLE"]
if how == "sleeps":
    time.sleep(60)
if how == "grows":
    time.sleep(0.5)  # the limit is given to a process that runs
    bytearray(2**30)
if how == "no tiles" and request["xla"].get("xla_gpu_enable_triton_gemm", True):
    refusal = {{"error": "refused", "message": "INTERNAL: Couldn't find output tile sizes"}}
    (folder / "answer.json").write_text(json.dumps(refusal))
    sys.exit()
if how == "dies":
    print("killed by hand", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 9)
if how.startswith("{{"):
    answer = json.loads(how)
else:
    (folder / "program.hlo_proto.pb").write_bytes(gzip.decompress(Path({str(MLP)!r}).read_bytes()))
(folder / "answer.json").write_text(json.dumps(answer))
"""


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Put the double in the interpreter's place; return the file that lists its requests."""
    path = tmp_path / "python"
    path.write_text(DOUBLE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(PYTHON, str(path))
    monkeypatch.setenv("KERAS_RECOMPUTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOUBLE", "works")
    return tmp_path / "asked"


def compiled(size: int = 4, **options) -> kr.liveness.CompiledProgram:
    return kr.liveness.compile_program(
        lambda x: tf.tanh(x @ x), tf.TensorSpec((size, size)), device="h100", **options
    )


def refused(monkeypatch, message: str) -> None:
    monkeypatch.setenv("DOUBLE", json.dumps({"error": "refused", "message": message}))


def asked(double: Path) -> int:
    return len(double.read_text().splitlines()) if double.exists() else 0


@pytest.mark.usefixtures("double")
def test_the_record_says_who_compiled_it_and_what_the_device_has():
    program = compiled()
    assert (
        program.compiled_by
        == "XLA of jax 1, jax-cuda12-pjrt 4, jaxlib 2, libtpu 3 for NVIDIA H100 80GB HBM3"
    )
    assert program.capacity_bytes == 84_942_979_072
    assert program.compile_seconds == 1.5
    assert program.stated == {"temp": 12848}


def test_a_program_is_compiled_once_for_each_device(double):
    first = compiled()
    assert compiled() == first
    assert asked(double) == 1  # another trace of the same function is the same program
    compiled(size=5)
    kr.liveness.compile_program(lambda x: tf.tanh(x @ x), tf.TensorSpec((4, 4)), device="v5e")
    assert double.read_text().splitlines() == ['"h100"', '"h100"', '"v5e:1x1"']


@pytest.mark.parametrize("damage", ["cut", "no JSON", "no sum", "no program"])
def test_a_damaged_entry_is_compiled_anew(double, damage):
    first = compiled()
    (entry,) = cache.cache_folder().iterdir()
    answer, program = entry / "answer.json", entry / "program.hlo_proto.pb"
    if damage == "cut":
        program.write_bytes(program.read_bytes()[:-1])
    elif damage == "no JSON":
        answer.write_text("{")
    elif damage == "no sum":
        answer.write_text("{}")
    else:
        program.unlink()
    assert compiled() == first
    assert asked(double) == 2
    assert compiled() == first
    assert asked(double) == 2


@pytest.mark.usefixtures("double")
def test_of_two_that_store_the_same_one_stays():
    cache.store("key", b"first", {"seconds": 1})
    cache.store("key", b"second", {"seconds": 2})
    assert cache.find_entry("key") == (b"first", {"seconds": 1})
    assert [entry.name for entry in cache.cache_folder().iterdir()] == ["key"]


@pytest.mark.usefixtures("double")
def test_the_oldest_entries_go(monkeypatch):
    monkeypatch.setattr(cache, "ENTRIES_AT_MOST", 2)
    for number in range(4):
        cache.store(str(number), b"", {})
    assert len(list(cache.cache_folder().iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_done_without(double, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERAS_RECOMPUTE_CACHE", str(tmp_path / "file" / "cache"))
    assert compiled() == compiled()
    assert asked(double) == 2


@pytest.mark.usefixtures("double")
def test_a_compiler_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setenv("DOUBLE", "sleeps")
    with pytest.raises(
        DeviceError, match=r"NVIDIA H100 80GB HBM3 took longer than 0.2 s: allow more"
    ):
        compiled(timeout_seconds=0.2)
    assert not cache.cache_folder().exists()


@pytest.mark.long
@pytest.mark.usefixtures("double")
def test_limits_of_a_context_go_before_those_of_a_call(monkeypatch):
    monkeypatch.setenv("DOUBLE", "sleeps")
    late = pytest.raises(DeviceError, match=r"took longer than 0.2 s")
    with compile_limits(CompileLimits(seconds=0.2)), late:
        compiled(timeout_seconds=60)
    monkeypatch.setenv("DOUBLE", "grows")  # by 1 GiB
    large = pytest.raises(DeviceError, match=r"memory \(it may take 256 MiB\): MemoryError")
    with compile_limits(CompileLimits(memory_bytes=2**28)), large:
        compiled()
    assert compiled().compile_seconds == 1.5


@pytest.mark.usefixtures("double")
def test_a_compiler_that_is_killed_says_its_last_line(monkeypatch):
    monkeypatch.setenv("DOUBLE", "dies")
    with pytest.raises(
        DeviceError, match=r"was ended by signal 9, perhaps for lack of memory: killed by hand"
    ):
        compiled()


@pytest.mark.parametrize(
    "jax", ["import time; time.sleep(60)", "raise ImportError('no jax')"], ids=["compiles", "ends"]
)
def test_a_compiler_does_not_outlive_who_asked(tmp_path, jax):
    """Its standard input is closed when that process is gone, as by SIGKILL; one that is done first
    ends by itself.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "jax.py").write_text(jax)
    (tmp_path / "request.json").write_text(json.dumps({"folder": str(folder), "environment": {}}))
    command = [sys.executable, str(WORKER), str(tmp_path / "request.json")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as worker:
        if "sleep" in jax:
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.5)
            worker.stdin.close()
            assert worker.wait(20) == 1
            assert not folder.exists()
        else:
            assert worker.wait(20) == 0
            assert json.loads((folder / "answer.json").read_text()) == {
                "error": "missing",
                "message": "no jax",
            }
        assert worker.stderr.read() == b""


@pytest.mark.usefixtures("double")
def test_what_the_compiler_refuses_is_said_in_its_words(monkeypatch):
    refused(monkeypatch, "JaxRuntimeError: UNIMPLEMENTED:\n no such call")
    with pytest.raises(
        DeviceError, match="refused the program: JaxRuntimeError: UNIMPLEMENTED: no such call"
    ):
        compiled()


def test_products_without_tiles_are_those_of_a_library(double, monkeypatch):
    monkeypatch.setenv("DOUBLE", "no tiles")
    assert compiled().stated == {"temp": 12848}
    assert asked(double) == 2
    assert compiled().stated == {"temp": 12848}
    assert asked(double) == 2  # found in the cache


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("words", "gibibytes"),
    [
        ("in memory space hbm. Used 26.50G of 15.75G hbm", 26.5),
        ("on HBM, temporaries (48.00G) exceeds available HBM (15.75G)", 48),
    ],
)
def test_a_program_that_does_not_fit_says_what_it_needs(monkeypatch, words, gibibytes):
    refused(monkeypatch, f"JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory {words}")
    with pytest.raises(
        DoesNotFitError, match=r"and TPU v5e has 15.8 GiB: use more checkpoints"
    ) as raised:
        kr.liveness.compile_program(lambda x: x @ x, tf.TensorSpec((4, 4)), device="v5e")
    assert raised.value.needed_bytes == gibibytes * 2**30


@pytest.mark.usefixtures("double")
def test_a_disk_that_is_full_is_one_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        DeviceError, match=r"NVIDIA H100 80GB HBM3 could not be started: .*No space left on device"
    ):
        compiled()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setattr(
        "keras_recompute.liveness.device_compilers.compiler.versions_of",
        lambda *_: {"jax": "1", "jaxlib": "1"},
    )
    with pytest.raises(DeviceError, match=r'pip install "keras-recompute\[devices\]"'):
        compiled()


def test_an_interpreter_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(DeviceError, match=r"/nowhere/python cannot be asked for its packages"):
        compiled()


def test_without_the_compiler_nothing_is_traced(monkeypatch):
    monkeypatch.setenv(PYTHON, "/bin/true-python-that-is-not-there")
    traced = []

    def step(x):
        traced.append(x)
        return x

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(DeviceError, match=PYTHON):
        kr.liveness.profile(step, tf.TensorSpec((2, 4)), device="h100")
    with pytest.raises(DeviceError, match=PYTHON):
        kr.plan(model, memory_budget="device", device="h100", batch_size=2)
    assert not traced
