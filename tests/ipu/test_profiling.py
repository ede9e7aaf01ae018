"""Reports of compiled programs: their time and place, and programs that do not fit.

Source: Graphcore, PopVision.
"""

from __future__ import annotations

import gc
import json
import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute.engine  # noqa: F401  (before anything is compiled)
from keras_recompute.ipu.configuration import config
from keras_recompute.ipu.configuration.config import IPUConfig
from keras_recompute.ipu.names.test_utils import ReportHelper
from keras_recompute.ipu.reports import profiling, pva
from keras_recompute.ipu.reports.auto_report import AutoReport
from keras_recompute.liveness import profile


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch):
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    yield
    config.reset_ipu_configuration()


def configure(*, tiles: int = 0, **options: str) -> IPUConfig:
    settings = IPUConfig()
    settings.compilation_poplar_options = {
        name.replace("__", "."): value for name, value in options.items()
    }
    settings.ipu_model.tiles_per_ipu = tiles
    settings.configure_ipu_system()
    return settings


def ask(monkeypatch, **options: str) -> None:
    text = json.dumps({name.replace("__", "."): value for name, value in options.items()})
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)


def a_program():
    """Return a compiled function of ``x`` with a variable of 256 bytes."""
    weight = tf.Variable(tf.ones((8, 8)), name="weight")
    return tf.function(lambda x: tf.reduce_sum(tf.sin(x @ weight)), jit_compile=True)


X = tf.ones((4, 8))


def folders(directory: Path) -> list[Path]:
    return sorted(directory.glob("*"))


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert float(profiling.run_reported(a_program(), X)) == pytest.approx(
        4 * 8 * 0.98935825, rel=1e-5
    )
    assert folders(tmp_path) == []


def test_one_folder_for_one_compiled_program(tmp_path, monkeypatch):
    """By the environment: all reports.

    A second signature is another program, a second run is none.
    """
    ask(
        monkeypatch,
        autoReport__all="true",
        autoReport__directory=str(tmp_path / "deep" / "reports"),
    )
    function = a_program()
    for _ in range(3):
        profiling.run_reported(function, X, input_feed=["x"])
    [first] = folders(tmp_path / "deep" / "reports")
    assert re.fullmatch(
        rf"tf_report__\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d+__{os.getpid()}", first.name
    )
    assert {file.name for file in first.iterdir()} == {
        "profile.pop",
        "framework.json",
        "debug.cbor",
        "keras_recompute.json",
    }
    profiling.run_reported(function, tf.ones((6, 8)), input_feed=["x"])
    profiling.run_reported(a_program(), X, input_feed=["x"])
    assert len(folders(tmp_path / "deep" / "reports")) == 3
    report = pva.openReport(first / "profile.pop")
    assert len(report.execution.runs) == 2, "as many as Poplar reports by default"
    assert all(run.seconds > 0 for run in report.execution.runs)
    expected = profile(function, X, input_feed=["x"])
    assert expected.always_live_bytes >= 256
    always = sum(tile.memory.alwaysLiveBytes for tile in report.compilation.tiles)
    most = max(step.notAlwaysLiveMemory.bytes for step in report.compilation.livenessProgramSteps)
    assert (always, always + most) == (expected.always_live_bytes, expected.peak_bytes)


def test_the_framework_report(tmp_path, monkeypatch):
    ask(monkeypatch, autoReport__all="true", autoReport__directory=str(tmp_path))
    settings = IPUConfig()
    settings.allow_recompute = True
    settings.configure_ipu_system()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, name="dense")], name="mine")
    profiling.run_reported(a_program(), X, ipu_of_layer={"dense": 0}, model=model)
    [folder] = folders(tmp_path)
    framework = json.loads((folder / "framework.json").read_text())
    assert framework["framework"].startswith(f"TensorFlow {tf.__version__}, Keras 3")
    assert (framework["model"], framework["ipu_of_layer"]) == ("mine", {"dense": 0})
    assert framework["configuration"] == settings.to_dict()
    assert "spread evenly over its tiles" in framework["note"]
    debug = (folder / "debug.cbor").read_bytes()
    assert debug[0] == 0xA3, "a map of three: the note, the steps, the sources"
    assert b"instruction" in debug


def test_the_configuration_asks_and_the_environment_wins(tmp_path, monkeypatch):
    configure(
        autoReport__outputGraphProfile="true", autoReport__directory=str(tmp_path / "configured")
    )
    profiling.run_reported(a_program(), X)
    [folder] = folders(tmp_path / "configured")
    assert {file.name for file in folder.iterdir()} == {"profile.pop", "keras_recompute.json"}
    assert pva.openReport(folder).execution.runs == []
    ask(monkeypatch, autoReport__directory=str(tmp_path / "environment"))
    profiling.run_reported(a_program(), X)
    assert [len(folders(tmp_path / name)) for name in ("configured", "environment")] == [1, 1]
    ask(monkeypatch, autoReport__outputGraphProfile="false")
    profiling.run_reported(a_program(), X)
    assert len(folders(tmp_path / "configured")) == 1


@pytest.mark.parametrize(
    ("options", "graph", "execution", "everything", "runs", "must_fit"),
    [
        ({}, False, False, False, 2, False),
        ({"autoReport.all": "true"}, True, True, True, 2, True),
        (
            {"autoReport.all": "true", "autoReport.outputExecutionProfile": "false"},
            True,
            False,
            True,
            2,
            True,
        ),
        (
            {
                "autoReport.outputExecutionProfile": "true",
                "autoReport.executionProfileProgramRunCount": "7",
            },
            False,
            True,
            False,
            7,
            False,
        ),
        ({"autoReport.all": "true", "debug.allowOutOfMemory": "true"}, True, True, True, 2, False),
        ({"debug.allowOutOfMemory": "false"}, False, False, False, 2, True),
    ],
)
def test_what_options_ask_for(monkeypatch, options, graph, execution, everything, runs, must_fit):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(options))
    asked = AutoReport.in_force()
    assert (asked.graph, asked.execution, asked.everything, asked.max_runs, asked.must_fit) == (
        graph,
        execution,
        everything,
        runs,
        must_fit,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "give a JSON object with strings as values"),
        ('{"autoReport.all": true}', "give a JSON object with strings as values"),
        ('{"autoReport.all": "yes"}', "autoReport.all is 'yes': give 'true' or 'false'"),
        (
            '{"autoReport.executionProfileProgramRunCount": "x"}',
            "RunCount is 'x': give a whole number as a string",
        ),
    ],
)
def test_options_that_cannot_be_read(monkeypatch, text, said):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    with pytest.raises(ValueError, match=said):
        profiling.run_reported(a_program(), X)


def test_a_program_that_does_not_fit(tmp_path):
    """64 x 64 float32 are 16 KiB, and one tile of an ipu1 is 256 KiB: 20 such variables need more.

    The report is written.
    """
    variables = [tf.Variable(tf.ones((64, 64)), name=f"v{n}") for n in range(20)]
    function = tf.function(
        lambda: tf.add_n([tf.reduce_sum(v) for v in variables]), jit_compile=True
    )
    settings = IPUConfig()
    settings.ipu_model.version, settings.ipu_model.tiles_per_ipu = "ipu1", 1
    settings.compilation_poplar_options = {
        "autoReport.outputGraphProfile": "true",
        "autoReport.directory": str(tmp_path),
    }
    settings.configure_ipu_system()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="out of memory") as raised:
        profiling.run_reported(function)
    [folder] = folders(tmp_path)
    assert f"Its profile was written to {folder / 'profile.pop'}" in raised.value.message
    assert "on IPU 0, whose 1 tiles have 256 KiB" in raised.value.message
    assert pva.openReport(folder).compilation.target.bytesPerIPU == 256 * 1024
    assert (
        sum(t.memory.alwaysLiveBytes for t in pva.openReport(folder).compilation.tiles)
        >= 20 * 16 * 1024
    )

    settings.compilation_poplar_options = {"debug.allowOutOfMemory": "false"}
    settings.configure_ipu_system()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Reports were not asked for"):
        profiling.run_reported(function)
    settings.ipu_model.tiles_per_ipu = 2
    settings.configure_ipu_system()
    assert profiling.run_reported(function) == 20 * 64 * 64
    settings.io_tiles.num_io_tiles = 1
    settings.configure_ipu_system()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="whose 1 tiles"):
        profiling.run_reported(function)
    settings.compilation_poplar_options = {}
    settings.configure_ipu_system()
    assert profiling.run_reported(function) == 20 * 64 * 64, "nobody asked about the device"


def test_programs_that_a_script_compiles_itself(tmp_path):
    """``strategy.run`` reports a compiled function, but no other function: it is no program."""
    from keras_recompute.ipu.models.strategy import IPUStrategy

    configure(autoReport__outputGraphProfile="true", autoReport__directory=str(tmp_path))
    strategy = IPUStrategy()
    with strategy.scope():
        assert strategy.run(tf.function(lambda x: x + 1), args=(X,)).shape == X.shape
        assert folders(tmp_path) == []
        function = a_program()
        for _ in range(2):
            strategy.run(function, kwargs={"x": X})
    assert len(folders(tmp_path)) == 1


@pytest.mark.long
def test_programs_of_a_model_without_stages(tmp_path):
    """fit, evaluate and predict compile one program each, and each is reported once."""
    from keras_recompute.ipu.models.strategy import IPUStrategy

    configure(autoReport__outputGraphProfile="true", autoReport__directory=str(tmp_path))
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    with IPUStrategy().scope():
        inputs = keras.Input((5,), batch_size=4)
        model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
        model.compile("sgd", "mse")
        for count, use in enumerate((model.fit, model.evaluate, model.predict), start=1):
            for _ in range(2):
                use(x, *([] if use == model.predict else [y]), batch_size=4, verbose=0)
            assert len(folders(tmp_path)) == count
    for folder in folders(tmp_path):
        compilation = pva.openReport(folder).compilation
        assert sum(tile.memory.alwaysLiveBytes for tile in compilation.tiles) >= (5 * 3 + 3) * 4


def test_the_device_of_the_strategy(tmp_path):
    """With devices of one and of two IPUs, a program of the second device is reported for two."""
    from keras_recompute.ipu.models.strategy import IPUStrategy

    settings = IPUConfig()
    settings.auto_select_ipus = [1, 2]
    settings.compilation_poplar_options = {
        "autoReport.outputGraphProfile": "true",
        "autoReport.directory": str(tmp_path),
    }
    settings.configure_ipu_system()
    function = a_program()
    with IPUStrategy("/device:IPU:1").scope():
        profiling.run_reported(function, keywords={"x": X}, input_feed=["x"])
    with IPUStrategy().scope():
        profiling.run_reported(function, X)
    targets = sorted(
        pva.openReport(folder).compilation.target.numIPUs for folder in folders(tmp_path)
    )
    assert targets == [1, 2]
    with IPUStrategy("/device:IPU:2").scope(), pytest.raises(
        ValueError, match="is not one of the 2 configured devices"
    ):
        profiling.run_reported(function, X)


class TestReportHelper:
    def test_reports_of_a_test(self):
        helper, settings = ReportHelper(), IPUConfig()
        settings.compilation_poplar_options = {"target.workerStackSizeInBytes": "4096"}
        helper.set_autoreport_options(settings, output_execution_profile=True)
        assert settings.compilation_poplar_options["target.workerStackSizeInBytes"] == "4096"
        settings.configure_ipu_system()
        function, other = a_program(), a_program()
        for _ in range(3):
            profiling.run_reported(function, X)
        first = helper.find_report()
        assert len(pva.openReport(first).execution.runs) == 3
        profiling.run_reported(other, X)
        assert helper.find_reports()[0] == first
        helper.assert_num_reports(2)
        with pytest.raises(AssertionError, match="3 reports were expected, but there are 2"):
            helper.assert_num_reports(3)
        with pytest.raises(AssertionError, match="one report was expected, but there are 2"):
            helper.find_report()
        helper.clear_reports()
        assert helper.find_reports() == []
        with pytest.raises(AssertionError, match="one report was expected, but there are 0"):
            helper.find_report()

    @pytest.mark.long
    def test_the_folder_goes_with_it(self):
        helper = ReportHelper()
        folder = helper._directory
        assert folder.is_dir()
        with pytest.raises(
            AssertionError, match=r"there are 0: set_autoreport_options\(cfg\) was not called"
        ):
            helper.find_report()
        del helper
        gc.collect()
        assert not folder.exists()

    def test_a_folder_that_is_gone(self):
        helper = ReportHelper()
        helper._directory.rmdir()
        with pytest.raises(RuntimeError, match=r"call set_autoreport_options\(cfg\) first"):
            helper.find_reports()
        helper.set_autoreport_options(IPUConfig())
        with pytest.raises(OSError, match="no longer exists"):
            helper.find_reports()

    def test_a_folder_without_its_report(self):
        helper = ReportHelper()
        (helper._directory / "tf_report__x__1").mkdir()
        with pytest.raises(OSError, match=r"has 0 reports instead of one: \[\]"):
            helper.find_reports()
