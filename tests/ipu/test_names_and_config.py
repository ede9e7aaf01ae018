"""Graphcore's names come with install() and go with uninstall(); IPUConfig checks what it is given (contract 1 and 2)."""

from __future__ import annotations

import importlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.ipu import has_sdk, install, uninstall

NAMES = (
    "tensorflow.python.ipu",
    "tensorflow.python.ipu.config",
    "tensorflow.python.ipu.ipu_strategy",
    "tensorflow.python.ipu.pipelining_ops",
    "tensorflow.python.ipu.ops.pipelining_ops",
    "tensorflow.python.ipu.gradient_accumulation",
    "ipu_tensorflow_addons.keras.layers",
)


@pytest.fixture
def installed():
    install()
    yield
    uninstall()


@pytest.fixture
def config(installed):  # noqa: ARG001
    from tensorflow.python import ipu

    yield ipu.config.IPUConfig()
    ipu.config.reset_ipu_configuration()


def test_the_names_come_and_go():
    before = set(sys.modules)
    assert not has_sdk()
    for _ in range(2):  # and may come back
        assert install() is True
        assert install() is True, "a second call does nothing"
        for name in NAMES:
            importlib.import_module(name)
        assert tf.keras.ipu.PipelineStage is sys.modules["tensorflow.keras.ipu"].PipelineStage
        from tensorflow.python import ipu

        assert ipu.ops.pipelining_ops is ipu.pipelining_ops
        uninstall()
        uninstall()
        assert not {name for name in set(sys.modules) - before if "ipu" in name.split(".")[-1] and "tensorflow" in name}
        assert not hasattr(tf.keras, "ipu")
        with pytest.raises(ImportError):
            importlib.import_module("ipu_tensorflow_addons")


def test_importing_the_room_patches_nothing():
    assert not hasattr(tf.keras, "ipu")
    assert "tensorflow.python.ipu" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_names_under_graphcore_s_spelling():
    import ipu_tensorflow_addons.keras.layers as layers
    from tensorflow.python import ipu

    assert ipu.ipu_strategy.IPUStrategy is ipu.ipu_strategy.IPUStrategyV1
    assert [s.name for s in ipu.pipelining_ops.PipelineSchedule] == ["Grouped", "Interleaved", "Sequential"]
    assert issubclass(layers.PopnnLSTM, keras.layers.LSTM)
    assert issubclass(layers.PopnnGRU, keras.layers.GRU)
    assert layers.RecomputationCheckpoint(name="mark").get_config()["name"] == "mark"


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("auto_select_ipus", []),
        ("allow_recompute", False),
        ("compilation_poplar_options", {}),
        ("device_connection.enable_remote_buffers", False),
        ("floating_point_behaviour.inv", False),
        ("io_tiles.available_memory_proportion", 0.9),
        ("ipu_model.version", "ipu2"),
        ("optimizations.math.dot_strength", True),
        ("optimizations.minimum_remote_tensor_size", 128),
        ("scheduling.maximum_scheduler_lookahead_depth", 5),
        ("norms.experimental.distributed_batch_norm_replica_group_size", 1),
    ],
)
def test_defaults(config, name, default):
    assert config.to_dict()[name] == default
    assert f"{name} = {default}" in str(config).splitlines()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("allow_recompute", 1, "bool"),
        ("compilation_poplar_options", [], "dict"),
        ("serialization_output_folder", None, "str"),
        ("auto_select_ipus", True, "int, or list or tuple of int"),
        ("auto_select_ipus", 1.0, "int, or list or tuple of int"),
        ("auto_select_ipus", [1, "2"], "int, or list or tuple of int"),
        ("selection_order", "AUTO", "SelectionOrder"),
    ],
)
def test_types_are_checked_strictly(config, name, value, wanted):
    with pytest.raises(TypeError, match=f"'{name}' must be of type {wanted}, but was given"):
        setattr(config, name, value)


def test_types_in_categories_are_named_in_full(config):
    with pytest.raises(TypeError, match=r"'io_tiles.num_io_tiles' must be of type int, but was given True of type bool"):
        config.io_tiles.num_io_tiles = True
    with pytest.raises(TypeError, match=r"'io_tiles.available_memory_proportion' must be of type float, but was given 1 of"):
        config.io_tiles.available_memory_proportion = 1


def test_unknown_names_are_refused_with_a_hint(config):
    with pytest.raises(ValueError, match=r"'allow_recompue' is not an option of IPUConfig\. Did you mean 'allow_recompute'"):
        config.allow_recompue = True
    with pytest.raises(ValueError, match=r"Did you mean 'optimizations\.math'"):
        _ = config.optimizations.maths
    with pytest.raises(ValueError, match="not an option"):
        hasattr(config, "nothing_like_it")


def test_a_category_cannot_be_assigned(config):
    with pytest.raises(Exception, match=r"'optimizations\.math' is a category, not an option"):
        config.optimizations.math = True


def test_selections(config):
    config.auto_select_ipus = [1, 2]
    config.select_ipus = (0, 1)
    with pytest.raises(Exception, match="both auto_select_ipus and select_ipus are set"):
        config.configure_ipu_system()
    config.auto_select_ipus = []
    config.select_ipus = [1, 1]
    with pytest.raises(ValueError, match=r"select_ipus=\[1, 1\] names a device twice"):
        config.configure_ipu_system()


def test_defaults_are_not_shared(config):
    from tensorflow.python import ipu

    config.compilation_poplar_options["a"] = "b"
    config.matmuls.poplar_options["c"] = "d"
    other = ipu.config.IPUConfig()
    assert other.compilation_poplar_options == {}
    assert other.matmuls.poplar_options == other.convolutions.poplar_options == {}


def test_the_configuration_in_force(config):
    from tensorflow.python import ipu

    from keras_recompute.ipu import config as ours

    assert ours.current().allow_recompute is False
    config.allow_recompute = True
    ipu.config.configure_ipu_system(config)
    assert ours.current() is config
    ipu.config.reset_ipu_configuration()
    assert ours.current().allow_recompute is False


@pytest.mark.usefixtures("installed")
class TestPopnn:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("use_bias", False),
            ("kernel_regularizer", "l2"),
            ("bias_constraint", "non_neg"),
            ("recurrent_dropout", 0.1),
            ("go_backwards", True),
            ("unroll", True),
            ("time_major", True),
        ],
    )
    @pytest.mark.parametrize("layer", ["PopnnLSTM", "PopnnGRU"])
    def test_what_popnn_does_not_do(self, layer, name, value):
        import ipu_tensorflow_addons.keras.layers as layers

        with pytest.raises(ValueError, match=f"{layer}.*{name}={value!r}"):
            getattr(layers, layer)(4, **{name: value})

    @pytest.mark.parametrize(("name", "plain"), [("PopnnLSTM", keras.layers.LSTM), ("PopnnGRU", keras.layers.GRU)])
    def test_weights_and_results_are_keras_s(self, name, plain, tmp_path):
        import ipu_tensorflow_addons.keras.layers as layers

        inputs = keras.Input((5, 3))
        ours = getattr(layers, name)(4, return_sequences=True, partials_dtype=tf.float16, options={"a": "b"}, dropout_seed=3)
        model = keras.Model(inputs, ours(inputs))
        reference = plain(4, return_sequences=True)
        x = np.linspace(-1, 1, 30, dtype="float32").reshape(2, 5, 3)
        reference(x)
        reference.set_weights([w + 0.1 for w in ours.get_weights()])
        ours.set_weights(reference.get_weights())
        np.testing.assert_allclose(model(x), reference(x), atol=1e-6)
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
        assert loaded.layers[-1].get_config() == ours.get_config()
        np.testing.assert_array_equal(loaded(x), model(x))


@pytest.mark.usefixtures("installed")
def test_the_checkpoint_operation_is_an_identity_on_nests():
    from tensorflow.python import ipu

    nest = {"a": tf.constant([1.0]), "b": (tf.constant(2), [tf.constant([3.0])])}
    returned = ipu.pipelining_ops.recomputation_checkpoint(nest, name="mark")
    tf.nest.assert_same_structure(returned, nest)
    for a, b in zip(tf.nest.flatten(returned), tf.nest.flatten(nest), strict=True):
        np.testing.assert_array_equal(a, b)
