"""IPUConfig checks its values and documents its options (Graphcore: IPUConfig and hardware)."""

from __future__ import annotations

import copy
import json
import logging

import pytest

from keras_recompute.ipu.configuration import config as ours
from keras_recompute.ipu.configuration.config import (
    DeviceConnectionType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from keras_recompute.ipu.configuration.options import OPTIONS
from keras_recompute.ipu.configuration.refusals import UNSUPPORTED


@pytest.fixture
def config():
    yield IPUConfig()
    ours.reset_ipu_configuration()


def put(config: IPUConfig, name: str, value: object) -> None:
    """Set an option by its full name."""
    *path, last = name.split(".")
    for part in path:
        config = getattr(config, part)
    setattr(config, last, value)


# Written down from Graphcore's documentation, not from the code.
DEFAULTS = {
    "auto_select_ipus": [],
    "select_ipus": [],
    "allow_recompute": False,
    "selection_order": SelectionOrder.AUTO,
    "compilation_poplar_options": {},
    "device_connection.type": DeviceConnectionType.ALWAYS,
    "device_connection.version": "",
    "device_connection.enable_remote_buffers": False,
    "matmuls.poplar_options": {},
    "matmuls.clear_pass_type": False,
    "convolutions.poplar_options": {},
    "slices.poplar_options": {},
    "floating_point_behaviour.inv": False,
    "floating_point_behaviour.div0": False,
    "floating_point_behaviour.oflo": False,
    "floating_point_behaviour.esr": StochasticRoundingBehaviour.OFF,
    "floating_point_behaviour.nanoo": False,
    "floating_point_behaviour.set_all": False,
    "io_tiles.num_io_tiles": 0,
    "io_tiles.place_ops_on_io_tiles": False,
    "io_tiles.available_memory_proportion": 0.9,
    "ipu_model.compile_ipu_code": True,
    "ipu_model.tiles_per_ipu": 0,
    "ipu_model.version": "ipu2",
    "norms.use_stable_statistics": False,
    "norms.experimental.distributed_batch_norm_replica_group_size": 1,
    "optimizations.enable_graph_outlining": True,
    "optimizations.math.fast": False,
    "optimizations.math.dot_strength": True,
    "optimizations.prefetch_data_streams": True,
    "optimizations.combine_embedding_lookups": False,
    "optimizations.combine_matmuls": False,
    "optimizations.merge_infeed_io_copies": True,
    "optimizations.maximum_cross_replica_sum_buffer_size": 0,
    "optimizations.maximum_reduce_scatter_buffer_size": 0,
    "optimizations.maximum_inter_ipu_copies_buffer_size": 0,
    "optimizations.maximum_send_recv_cluster_size": 0,
    "optimizations.maximum_reduce_many_buffer_size": 0,
    "optimizations.maximum_all_gather_buffer_size": 0,
    "optimizations.minimum_remote_tensor_size": 128,
    "optimizations.merge_remote_buffers": MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
    "optimizations.enable_gather_simplifier": True,
    "optimizations.triangular_solve_expander_block_size": 0,
    "optimizations.cholesky_block_size": 0,
    "optimizations.enable_fast_math": False,
    "optimizations.enable_dynamic_slice_replacement": True,
    "pooling.poplar_options": {},
    "scheduling.algorithm": SchedulingAlgorithm.CHOOSE_BEST,
    "scheduling.maximum_scheduler_lookahead_depth": 5,
    "scheduling.maximum_scheduler_search_space_size": 64,
    "serialization_output_folder": "",
    "gcl_poplar_options": {},
    "experimental.always_rearrange_copies_on_the_host": False,
    "experimental.enable_remote_buffer_embedding": False,
    "experimental.enable_prng_stability": False,
    "experimental.multi_replica_distribution.process_index": 0,
    "experimental.multi_replica_distribution.process_count": 0,
}


def test_the_options_and_their_defaults(config):
    assert config.options() == DEFAULTS
    assert [algorithm.name for algorithm in SchedulingAlgorithm] == (
        "CHOOSE_BEST CLUSTERING POST_ORDER LOOK_AHEAD SHORTEST_PATH".split()
    )
    assert [order.name for order in SelectionOrder] == "AUTO ZIGZAG SNAKE HOOF".split()


def test_all_options_are_listed(config):
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.1"}
    lines = str(config).splitlines()
    assert len(lines) == len(DEFAULTS)
    assert "matmuls.poplar_options = {'availableMemoryProportion': '0.1'}" in lines
    assert "ipu_model.version = 'ipu2'" in lines
    assert "scheduling.algorithm = SchedulingAlgorithm.CHOOSE_BEST" in lines
    assert str(config.io_tiles).splitlines()[0] == "io_tiles.num_io_tiles = 0"
    assert repr(config).startswith("IPUConfig:\n  allow_recompute = False\n")


WRONG_TYPES = [
    ("allow_recompute", 1, "bool"),
    ("compilation_poplar_options", [], "dict"),
    ("serialization_output_folder", None, "str"),
    ("auto_select_ipus", True, "int, or list or tuple of int"),
    ("auto_select_ipus", 1.0, "int, or list or tuple of int"),
    ("auto_select_ipus", [1, "2"], "int, or list or tuple of int"),
    ("select_ipus", (1, True), "int, or list or tuple of int"),
    ("selection_order", "AUTO", "SelectionOrder"),
    ("io_tiles.num_io_tiles", True, "int"),
    ("io_tiles.available_memory_proportion", 1, "float"),
    ("ipu_model.version", 2, "str"),
    ("floating_point_behaviour.esr", "ON", "StochasticRoundingBehaviour or bool"),
    ("scheduling.algorithm", 0, "SchedulingAlgorithm"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG_TYPES)
def test_types_are_checked_strictly(config, name, value, wanted):
    with pytest.raises(
        TypeError, match=f"'{name}' must be of type {wanted}, but was given "
    ) as raised:
        put(config, name, value)
    assert repr(value) in str(raised.value)
    assert type(value).__name__ in str(raised.value)
    assert config.options() == DEFAULTS


def test_every_option_refuses_another_type(config):
    for option in OPTIONS:
        with pytest.raises(TypeError, match=f"'{option.name}' must be of type"):
            put(config, option.name, object())


def test_unknown_names_are_refused_with_a_hint(config):
    with pytest.raises(
        ValueError,
        match=r"'allow_recompue' is not an option of IPUConfig\. Did you mean 'allow_recompute'",
    ):
        config.allow_recompue = True
    with pytest.raises(ValueError, match=r"Did you mean 'optimizations\.math'"):
        _ = config.optimizations.maths
    with pytest.raises(ValueError, match="not an option"):
        hasattr(config, "nothing_like_it")


def test_a_category_cannot_be_assigned(config):
    with pytest.raises(
        Exception,
        match=r"'optimizations\.math' is a category, not an option: "
        "set one of fast, dot_strength in it",
    ):
        config.optimizations.math = True


def test_what_is_known_of_an_option(config):
    known = config.get_attribute_metadata("ipu_model.version")
    assert (known.name, known.type, known.default, known.deprecated) == (
        "ipu_model.version",
        "str",
        "ipu2",
        False,
    )
    assert config.ipu_model.get_attribute_metadata("version") is known
    assert config.get_attribute_metadata("auto_select_ipus").type == "int, or list or tuple of int"
    known.check_type("ipu1")
    with pytest.raises(TypeError, match=r"'ipu_model\.version' must be of type str"):
        known.check_type(1)
    for name, said in (
        ("ipu_model.versions", "Did you mean 'ipu_model.version'"),
        ("ipu_model", "is a category"),
        ("allow_recompute.x", "has nothing in it"),
    ):
        with pytest.raises(ValueError, match=said):
            config.get_attribute_metadata(name)


def test_a_deprecated_option_is_logged(config, caplog):
    assert config.get_attribute_metadata("optimizations.enable_fast_math").deprecated
    config.optimizations.enable_fast_math = True
    assert (
        "optimizations.enable_fast_math is deprecated: use optimizations.math.fast" in caplog.text
    )


def test_as_dictionary_and_json(config, caplog):
    config.auto_select_ipus = [1, 2]
    config.scheduling.algorithm = SchedulingAlgorithm.LOOK_AHEAD
    config.matmuls.poplar_options = {"a": "b"}
    plain = config.to_dict()
    assert plain["scheduling.algorithm"] == SchedulingAlgorithm.LOOK_AHEAD.value
    assert json.loads(config.to_json()) == plain
    for read, given in (("from_dict", plain), ("from_json", config.to_json())):
        other = IPUConfig()
        getattr(other, read)(given)
        assert other.options() == config.options()
    assert not caplog.records
    other.from_dict({"allow_recompute": True})
    assert other.allow_recompute is True
    assert "ipu_model.version is not in the configuration given: it stays 'ipu2'" in caplog.text


def test_defaults_are_not_shared(config):
    config.compilation_poplar_options["a"] = "b"
    config.matmuls.poplar_options["c"] = "d"
    other = IPUConfig()
    assert other.compilation_poplar_options == {}
    assert other.matmuls.poplar_options == other.convolutions.poplar_options == {}
    same = copy.deepcopy(config)
    same.compilation_poplar_options["a"] = "x"
    assert config.compilation_poplar_options["a"] == "b"


def test_the_configuration_in_force(config, caplog):
    assert ours.current().allow_recompute is False
    with pytest.raises(RuntimeError, match="no IPU devices are configured"):
        ours.get_ipu_config()
    config.allow_recompute = True
    config.auto_select_ipus = [1, 1]
    ours.configure_ipu_system(config)
    config.configure_ipu_system(device="/cpu:0")
    assert not caplog.records, "the same configuration again changes nothing"
    config.allow_recompute = False
    assert ours.current().allow_recompute is True, "what is in force is as it was then"
    assert [c.allow_recompute for c in ours.get_ipu_config()] == [True, True]
    with caplog.at_level(logging.WARNING):
        config.configure_ipu_system()
    assert "the current IPU configuration is replaced" in caplog.text
    ours.reset_ipu_configuration()
    assert ours.current().options() == DEFAULTS
    with pytest.raises(TypeError, match="needs an IPUConfig, not 'ipu2' of type str"):
        ours.configure_ipu_system("ipu2")


def test_selecting_in_two_ways(config):
    config.auto_select_ipus = [1, 2]
    config.select_ipus = (0, 1)
    with pytest.raises(Exception, match="both auto_select_ipus and select_ipus are set"):
        config.configure_ipu_system()
    assert ours._in_force == []


CANNOT_BE = [
    ({"select_ipus": [1, 1]}, r"select_ipus=\[1, 1\] names a device twice"),
    ({"select_ipus": 31}, "give numbers from 0 to 30"),
    ({"auto_select_ipus": [1, 0]}, "give each device at least one IPU"),
    ({"ipu_model.version": "ipu3"}, "ipu_model.version='ipu3' is unknown: give one of ipu1, ipu2"),
    ({"ipu_model.version": ""}, "ipu_model.version='' is unknown"),
    ({"ipu_model.tiles_per_ipu": -1}, "ipu_model.tiles_per_ipu=-1"),
    ({"io_tiles.num_io_tiles": 1472}, "num_io_tiles=1472 leaves none of the 1472 tiles"),
    ({"io_tiles.place_ops_on_io_tiles": True}, "needs I/O tiles"),
    (
        {"norms.experimental.distributed_batch_norm_replica_group_size": 0},
        "group_size=0: give at least 1",
    ),
    (
        {
            "norms.experimental.distributed_batch_norm_replica_group_size": 2,
            "io_tiles.num_io_tiles": 32,
        },
        "cannot be combined with io_tiles.num_io_tiles",
    ),
    (
        {"device_connection.type": DeviceConnectionType.NEVER},
        "device_connection.type NEVER needs device_connection.version",
    ),
    (
        {"device_connection.type": DeviceConnectionType.PRE_COMPILE},
        "device_connection.type PRE_COMPILE needs device_connection.version",
    ),
    (
        {
            "experimental.multi_replica_distribution.process_index": 2,
            "experimental.multi_replica_distribution.process_count": 2,
        },
        "process_index=2 is not below process_count=2",
    ),
]


@pytest.mark.parametrize(("options", "said"), CANNOT_BE)
def test_values_that_cannot_be(config, options, said):
    for name, value in options.items():
        put(config, name, value)
    with pytest.raises(ValueError, match=said):
        config.configure_ipu_system()


@pytest.mark.parametrize(
    "name", ["compilation_poplar_options", "gcl_poplar_options", "matmuls.poplar_options"]
)
@pytest.mark.parametrize("options", [{"a": True}, {"a": 0.1}, {1: "a"}])
def test_poplar_s_options_are_strings(config, name, options):
    put(config, name, options)
    with pytest.raises(
        TypeError,
        match=f"'{name}' needs Poplar's options, a dict of strings, not",
    ):
        config.configure_ipu_system()


def test_hardware_cannot_be_named_on_the_model(config, monkeypatch):
    config.select_ipus = 0
    config.configure_ipu_system()
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_ipu_model")
    with pytest.raises(Exception, match="select_ipus chooses hardware"):
        config.configure_ipu_system()


REFUSED = [
    ({"experimental.multi_replica_distribution.process_count": 1}, "replication over processes"),
    ({"optimizations.enable_graph_outlining": False}, "optimizations.enable_graph_outlining"),
    (
        {"device_connection.type": DeviceConnectionType.NEVER, "device_connection.version": "ipu2"},
        "device_connection.type",
    ),
    (
        {
            "device_connection.type": DeviceConnectionType.PRE_COMPILE,
            "device_connection.version": "ipu2",
        },
        "device_connection.type",
    ),
]


@pytest.mark.parametrize(("options", "entry"), REFUSED)
def test_what_would_change_results_or_memory_is_refused(config, options, entry):
    for name, value in options.items():
        put(config, name, value)
    with pytest.raises(NotImplementedError, match="is not emulated on stock TensorFlow") as raised:
        config.configure_ipu_system()
    name, value = next(iter(options.items()))
    assert f"{name} = {value}" in str(raised.value)
    assert str(raised.value).endswith(UNSUPPORTED[entry])
    assert ours._in_force == []


def test_every_option_that_can_be_refused_was_tried():
    tried = {name for options, _ in REFUSED for name in options}
    assert {option.name for option in OPTIONS if option.refused_as} <= tried


@pytest.mark.parametrize("name", ["set_all", "inv", "div0", "oflo", "esr", "nanoo"])
def test_floating_point_behaviour_is_accepted_with_a_warning(config, caplog, name):
    put(config, f"floating_point_behaviour.{name}", True)
    config.configure_ipu_system()
    [record] = caplog.records
    assert record.getMessage() == (
        f"floating_point_behaviour.{name}: accepted with a warning: numbers are rounded to "
        "nearest, and infinities and NaNs raise no error"
    )
    assert getattr(ours.current().floating_point_behaviour, name) is True


def test_options_without_meaning_are_accepted_and_remembered(config):
    """Options that are neither emulated nor refused accept any value of their type."""
    accepted = [
        option
        for option in OPTIONS
        if option.becomes.startswith("accepted")
        and not option.refused_as
        and not option.name.startswith(("io_tiles.place", "exp"))
    ]
    for option in accepted:
        default = option.default
        values = {bool: not default, int: 1, float: 0.5, str: "ipu2", dict: {"a": "b"}}
        other = (
            values[type(default)]
            if type(default) in values
            else next(m for m in type(default) if m is not default)
        )
        put(config, option.name, other)
    config.configure_ipu_system()
    kept = ours.current().options()
    assert len(accepted) > 30
    assert all(kept[option.name] != option.default for option in accepted)
