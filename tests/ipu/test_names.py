"""Graphcore's names come with install() and go with uninstall() (Graphcore: names)."""

from __future__ import annotations

import importlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu import has_sdk, install, uninstall
from keras_recompute.ipu.names.installation import NAMES


@pytest.fixture
def installed():
    install()
    yield
    uninstall()


@pytest.fixture
def not_installed():
    """In the process of another test the names may be installed."""
    uninstall()


@pytest.mark.usefixtures("not_installed")
def test_the_names_come_and_go():
    before, finders, pipeline = set(sys.modules), list(sys.meta_path), sys.modules.get("pva")
    assert not has_sdk()
    for _ in range(2):  # and may come back
        assert install() is True
        assert install() is True, "a second call does nothing"
        for name in NAMES:
            importlib.import_module(name)
        from tensorflow.python import ipu

        assert ipu is sys.modules["tensorflow.python.ipu"]
        uninstall()
        uninstall()
        assert not {name for name in NAMES if name in set(sys.modules) - before}
        assert sys.meta_path == finders
        assert sys.modules.get("pva") is pipeline
        assert not hasattr(tf.keras, "ipu")
        with pytest.raises(ImportError):
            importlib.import_module("ipu_tensorflow_addons")


@pytest.mark.usefixtures("not_installed")
def test_importing_the_room_patches_nothing():
    assert not hasattr(tf.keras, "ipu")
    assert not {name for name in NAMES if name in sys.modules}


@pytest.mark.usefixtures("installed")
def test_every_way_to_write_a_name():
    """The imports as scripts write them."""
    import ipu_tensorflow_addons.keras.layers as layers
    from tensorflow.keras import ipu as keras_counterpart
    from tensorflow.python import ipu
    from tensorflow.python.keras import ipu as of_python_keras

    for name in ("config", "gradient_accumulation", "ipu_strategy", "pipelining_ops", "utils"):
        assert getattr(ipu, name) is sys.modules[f"tensorflow.python.ipu.{name}"]
    assert ipu.ops.pipelining_ops.PipelineSchedule is ipu.pipelining_ops.PipelineSchedule
    assert tf.keras.ipu is keras_counterpart
    assert keras.ipu.PipelineStage is keras_counterpart.PipelineStage
    assert keras_counterpart.PipelineStage is of_python_keras.PipelineStage
    import tensorflow.keras.layers  # noqa: F401  (TensorFlow then puts another object in the place of tf.keras)

    assert tf.keras.ipu is keras_counterpart
    assert ipu.ipu_strategy.IPUStrategy is ipu.ipu_strategy.IPUStrategyV1
    assert [s.name for s in ipu.pipelining_ops.PipelineSchedule] == [
        "Grouped",
        "Interleaved",
        "Sequential",
    ]
    assert issubclass(layers.PopnnLSTM, keras.layers.LSTM)
    assert issubclass(layers.PopnnGRU, keras.layers.GRU)
    assert layers.LSTM is layers.PopnnLSTM
    assert layers.GRU is layers.PopnnGRU
    assert layers.RecomputationCheckpoint(name="mark").get_config()["name"] == "mark"


# Where a name is imported from, and the names.
TABLE = {
    "tensorflow.python.ipu": "config ipu_strategy pipelining_ops ops ipu_infeed_queue "
    "ipu_outfeed_queue utils gradient_accumulation test_utils nn_ops cross_replica_ops optimizers",
    "tensorflow.python.ipu.ops": "pipelining_ops nn_ops cross_replica_ops",
    **dict.fromkeys(
        ("tensorflow.python.ipu.nn_ops", "tensorflow.python.ipu.ops.nn_ops"),
        "gelu swish hard_sigmoid",
    ),
    **dict.fromkeys(
        ("tensorflow.python.ipu.cross_replica_ops", "tensorflow.python.ipu.ops.cross_replica_ops"),
        "cross_replica_sum cross_replica_mean assume_equal_across_replicas",
    ),
    "tensorflow.python.ipu.optimizers": "GradientAccumulationReductionMethod",
    **dict.fromkeys(
        (
            "keras.ipu.extensions",
            "tensorflow.keras.ipu.extensions",
            "tensorflow.python.keras.ipu.extensions",
        ),
        "PipelineStage FunctionalLayerPipelineStageAssignment FunctionalExtension "
        "SequentialExtension ModelExtension",
    ),
    "ipu_tensorflow_addons.keras.optimizers": (
        "AdamIpuOptimizer LAMBIpuOptimizer SGDIpuOptimizer IpuOptimizerBase"
    ),
    **dict.fromkeys(
        ("keras.ipu", "tensorflow.keras.ipu", "tensorflow.python.keras.ipu"),
        "PipelineStage FunctionalLayerPipelineStageAssignment "
        "SequentialLayerPipelineStageAssignment ModelLayerPipelineStageAssignment "
        "ReplicatedMetricReductionMethod",
    ),
    "ipu_tensorflow_addons.keras.layers": "PopnnLSTM LSTM PopnnGRU GRU "
    "RecomputationCheckpoint Dropout Embedding LayerNormalization "
    "GroupNormalization InstanceNormalization SerialDense Dense "
    "AssumeEqualAcrossReplicas",
    "keras.optimizer_v2": (
        "adadelta adagrad adam adamax ftrl gradient_descent learning_rate_schedule nadam rmsprop"
    ),
    "keras.optimizer_v2.adam": "Adam",
    "keras.optimizer_v2.gradient_descent": "SGD",
    "keras.optimizer_v2.learning_rate_schedule": "LearningRateSchedule ExponentialDecay",
    "keras.optimizer_v2.optimizer_v2": "OptimizerV2",
    "pva": "openReport",
    "tensorflow.python.ipu.config": (
        "IPUConfig SelectionOrder SchedulingAlgorithm DeviceConnectionType reset_ipu_configuration"
    ),
    "tensorflow.python.ipu.ipu_strategy": "IPUStrategy IPUStrategyV1",
    **dict.fromkeys(
        ("tensorflow.python.ipu.pipelining_ops", "tensorflow.python.ipu.ops.pipelining_ops"),
        "PipelineSchedule RecomputationMode recomputation_checkpoint",
    ),
    "tensorflow.python.ipu.gradient_accumulation": "GradientAccumulationReductionMethod",
    "tensorflow.python.ipu.ipu_infeed_queue": "IPUInfeedQueue",
    "tensorflow.python.ipu.ipu_outfeed_queue": "IPUOutfeedQueue IPUOutfeedMode",
    "tensorflow.python.ipu.utils": "reset_ipu_seed move_variable_initialization_to_cpu IPUConfig "
    "configure_ipu_system DeviceConnectionType SelectionOrder",
    "tensorflow.python.ipu.test_utils": "ReportHelper test_uses_ipus test_may_use_ipus_or_model "
    "skip_on_hw add_hw_ci_connection_options skip_if_not_enough_ipus get_ci_num_ipus has_ci_ipus",
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("module", TABLE)
def test_every_documented_name(module):
    found = importlib.import_module(module)
    assert [name for name in TABLE[module].split() if not hasattr(found, name)] == []


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "module", ["ipu_compiler", "ipu_estimator", "embedding_ops", "distributed"]
)
def test_modules_that_are_not_emulated_cannot_be_imported(module):
    with pytest.raises(ImportError, match=module):
        importlib.import_module(f"tensorflow.python.ipu.{module}")


def test_what_was_there_is_put_back(monkeypatch):
    """A module of the same name, such as PopVision's own pva, is back after uninstall()."""
    mine, popvision = type(sys)("tensorflow.python.ipu"), type(sys)("pva")
    owner = importlib.import_module("tensorflow.python")
    monkeypatch.setitem(sys.modules, "pva", popvision)
    monkeypatch.setattr(owner, "ipu", mine, raising=False)
    install()
    from tensorflow.python import ipu

    assert ipu is not mine
    assert sys.modules["pva"].openReport
    uninstall()
    assert sys.modules["pva"] is popvision
    assert owner.ipu is mine


@pytest.mark.usefixtures("installed")
def test_the_checkpoint_operation_is_an_identity_on_nests():
    from tensorflow.python import ipu

    nest = {"a": tf.constant([1.0]), "b": (tf.constant(2), [tf.constant([3.0])])}
    returned = ipu.pipelining_ops.recomputation_checkpoint(nest, name="mark")
    tf.nest.assert_same_structure(returned, nest)
    for a, b in zip(tf.nest.flatten(returned), tf.nest.flatten(nest), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("installed")
class TestUtils:
    def test_random_numbers_start_again(self):
        from tensorflow.python import ipu

        drop, other = keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)
        drawn = []
        for seed in (3, 3, 4):
            ipu.utils.reset_ipu_seed(seed)
            drawn.append(
                [layer(tf.ones((4, 50)), training=True).numpy() for layer in (drop, drop, other)]
            )
        np.testing.assert_array_equal(drawn[0], drawn[1])
        for a, b in ((drawn[0][0], drawn[0][1]), (drawn[0][0], drawn[2][0])):
            assert (a != b).mean() > 0.3
        with pytest.raises(TypeError, match=r"reset_ipu_seed\(seed=1.5\): give a whole number"):
            ipu.utils.reset_ipu_seed(1.5)

    def test_devices(self, monkeypatch):
        from tensorflow.python import ipu

        config = ipu.config.IPUConfig()
        config.auto_select_ipus = [1, 4]
        config.configure_ipu_system()
        assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:1") == 4
        with pytest.raises(
            ValueError, match="'/device:IPU:2' is not one of the 2 configured devices"
        ):
            ipu.utils.get_num_of_ipus_in_device("/device:IPU:2")
        ipu.config.reset_ipu_configuration()
        assert ipu.utils.get_num_of_ipus_in_device() == 1
        assert ipu.utils.running_on_ipu_model() is False
        monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache_path=x --use_ipu_model")
        assert ipu.utils.running_on_ipu_model() is True


@pytest.mark.usefixtures("installed")
class TestOperations:
    def test_activations_are_popnn_s(self):
        """gelu in its tanh form, up to 5e-4 beside the exact one."""
        from tensorflow.python.ipu import nn_ops

        x = np.linspace(-4, 4, 33, dtype="float32")
        gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        np.testing.assert_allclose(nn_ops.gelu(x), gelu, atol=1e-6)
        np.testing.assert_allclose(nn_ops.swish(x), x / (1 + np.exp(-x)), atol=1e-6)
        np.testing.assert_allclose(nn_ops.hard_sigmoid(x), np.clip(0.2 * x + 0.5, 0, 1), atol=1e-6)

    def test_one_replica_is_all_replicas(self):
        from tensorflow.python import ipu

        x = tf.constant([1.0, 2.0])
        for of_all in (
            ipu.cross_replica_ops.cross_replica_sum,
            ipu.ops.cross_replica_ops.cross_replica_mean,
        ):
            np.testing.assert_array_equal(of_all(x), x)
            np.testing.assert_array_equal(of_all(x, replica_group_size=1), x)
            with pytest.raises(
                NotImplementedError,
                match=r"replicas of a function \('replica_group_size=2'\) is not emulated",
            ):
                of_all(x, replica_group_size=2)
        [same] = ipu.cross_replica_ops.assume_equal_across_replicas([x], inplace=True)
        np.testing.assert_array_equal(same, x)

    def test_variables_are_made_as_ever(self):
        from tensorflow.python.ipu import utils

        assert utils.move_variable_initialization_to_cpu() is None

    def test_tests_that_need_ipus_run(self, monkeypatch):
        from tensorflow.python import ipu

        tu, ran = ipu.test_utils, []

        @tu.test_uses_ipus(num_ipus=64)
        @tu.test_may_use_ipus_or_model(num_ipus=2)
        @tu.skip_on_hw
        def case(self):
            tu.skip_if_not_enough_ipus(self, 64)
            ran.append(self)

        case(1)
        tu.test_uses_ipus(2, True, case)(2)
        assert ran == [1, 2]
        config = ipu.utils.IPUConfig()
        tu.add_hw_ci_connection_options(config)
        assert config.device_connection.type is ipu.config.DeviceConnectionType.ON_DEMAND
        assert (tu.get_ci_num_ipus(), tu.has_ci_ipus()) == (0, False)
        monkeypatch.setenv("TF_IPU_COUNT", "4")
        assert (tu.get_ci_num_ipus(), tu.has_ci_ipus()) == (4, True)

    def test_models_of_the_scope_are_known_by_their_extensions(self):
        from tensorflow.python import ipu

        extensions = keras.ipu.extensions
        inputs = keras.Input((2,))
        with ipu.ipu_strategy.IPUStrategy().scope():
            assert isinstance(
                keras.Model(inputs, keras.layers.Dense(1)(inputs)), extensions.FunctionalExtension
            )
            assert isinstance(keras.Sequential(), extensions.SequentialExtension)
            assert isinstance(type("Mine", (keras.Model,), {})(), extensions.ModelExtension)
        assert not isinstance(keras.Sequential(), extensions.SequentialExtension)
