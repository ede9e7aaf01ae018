"""The options of ``IPUConfig`` as data: names, defaults, types and support.

An option is *emulated*; or *accepted*, that is, stored and listed without effect, because it tunes
Poplar's compiler or the hardware; or *refused* if its value differs from the default, because that
would change results or memory and is not emulated. A few accepted options log a warning. The
reasons are in ``refusals``. Source: Graphcore, IPUConfig.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

EMULATED = "emulated"
ACCEPTED = "accepted, without effect: it tunes Poplar's compiler or an IPU's hardware"
ROUNDED = (
    "accepted with a warning: numbers are rounded to nearest, and infinities and NaNs raise no "
    "error"
)


class SelectionOrder(enum.Enum):
    """The order in which IPUs are chosen."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(enum.Enum):
    """When the program attaches to the device."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class SchedulingAlgorithm(enum.Enum):
    """How Poplar orders operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class MergeRemoteBuffersBehaviour(enum.Enum):
    """Whether remote buffers are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class StochasticRoundingBehaviour(enum.Enum):
    """Where numbers are rounded stochastically."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2


@dataclass(frozen=True)
class Option:
    """One option with its type and its support.

    ``type_name`` names the accepted type in errors, and ``fits`` returns whether a value has it.
    ``refused_as`` is the entry in ``refusals`` for values for which ``is_refused`` is true, by
    default all except the default.
    """

    name: str
    default: Any
    becomes: str = ACCEPTED
    type_name: str = ""
    fits: Callable[[Any], bool] | None = None
    refused_as: str | None = None
    is_refused: Callable[[Any], bool] | None = None
    deprecated: str | None = None

    def refuses(self, value: Any) -> bool:
        """Return whether ``value`` requests something that is not emulated."""
        if self.refused_as is None:
            return False
        return bool(self.is_refused(value) if self.is_refused else value != self.default)


def _is_selection(value: Any) -> bool:
    # isinstance would accept bools.
    return type(value) is int or (
        type(value) in (list, tuple) and all(type(item) is int for item in value)
    )


_SELECTION: dict[str, Any] = {
    "becomes": EMULATED,
    "type_name": "int, or list or tuple of int",
    "fits": _is_selection,
}

_REPLICAS = "replication over processes"
OPTIONS = (
    Option("allow_recompute", False, EMULATED),
    Option("selection_order", SelectionOrder.AUTO),
    Option("serialization_output_folder", ""),
    Option(
        "compilation_poplar_options",
        {},
        EMULATED + ": autoReport.* and debug.allowOutOfMemory; others accepted",
    ),
    Option("gcl_poplar_options", {}),
    Option("auto_select_ipus", [], **_SELECTION),
    Option("select_ipus", [], **_SELECTION),
    Option("convolutions.poplar_options", {}),
    Option(
        "device_connection.type",
        DeviceConnectionType.ALWAYS,
        refused_as="device_connection.type",
        is_refused=lambda value: (
            value in (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)
        ),
    ),
    Option("device_connection.version", ""),
    Option("device_connection.enable_remote_buffers", False),
    Option("slices.poplar_options", {}),
    Option("experimental.always_rearrange_copies_on_the_host", False),
    Option("experimental.enable_remote_buffer_embedding", False),
    Option("experimental.enable_prng_stability", False),
    Option("experimental.multi_replica_distribution.process_index", 0),
    Option("experimental.multi_replica_distribution.process_count", 0, refused_as=_REPLICAS),
    Option("floating_point_behaviour.inv", False, ROUNDED),
    Option("floating_point_behaviour.div0", False, ROUNDED),
    Option("floating_point_behaviour.oflo", False, ROUNDED),
    Option(
        "floating_point_behaviour.esr",
        StochasticRoundingBehaviour.OFF,
        ROUNDED,
        type_name="StochasticRoundingBehaviour or bool",
        fits=lambda value: type(value) in (StochasticRoundingBehaviour, bool),
    ),
    Option("floating_point_behaviour.nanoo", False, ROUNDED),
    Option("floating_point_behaviour.set_all", False, ROUNDED),
    Option("io_tiles.num_io_tiles", 0, EMULATED),
    Option("io_tiles.place_ops_on_io_tiles", False),
    Option("io_tiles.available_memory_proportion", 0.9),
    Option("ipu_model.compile_ipu_code", True),
    Option("ipu_model.tiles_per_ipu", 0, EMULATED),
    Option("ipu_model.version", "ipu2", EMULATED),
    Option("matmuls.clear_pass_type", False),
    Option("matmuls.poplar_options", {}),
    Option("norms.use_stable_statistics", False),
    Option("norms.experimental.distributed_batch_norm_replica_group_size", 1, EMULATED),
    Option("optimizations.math.fast", False),
    Option("optimizations.math.dot_strength", True),
    Option("optimizations.prefetch_data_streams", True),
    Option("optimizations.combine_embedding_lookups", False),
    Option("optimizations.combine_matmuls", False),
    Option(
        "optimizations.enable_graph_outlining",
        True,
        refused_as="optimizations.enable_graph_outlining",
    ),
    Option("optimizations.merge_infeed_io_copies", True),
    Option("optimizations.maximum_cross_replica_sum_buffer_size", 0),
    Option("optimizations.maximum_reduce_scatter_buffer_size", 0),
    Option("optimizations.maximum_inter_ipu_copies_buffer_size", 0),
    Option("optimizations.maximum_send_recv_cluster_size", 0),
    Option("optimizations.maximum_reduce_many_buffer_size", 0),
    Option("optimizations.maximum_all_gather_buffer_size", 0),
    Option("optimizations.minimum_remote_tensor_size", 128),
    Option("optimizations.merge_remote_buffers", MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
    Option("optimizations.enable_gather_simplifier", True),
    Option("optimizations.triangular_solve_expander_block_size", 0),
    Option("optimizations.cholesky_block_size", 0),
    Option("optimizations.enable_fast_math", False, deprecated="use optimizations.math.fast"),
    Option("optimizations.enable_dynamic_slice_replacement", True),
    Option("pooling.poplar_options", {}),
    Option("scheduling.algorithm", SchedulingAlgorithm.CHOOSE_BEST),
    Option("scheduling.maximum_scheduler_lookahead_depth", 5),
    Option("scheduling.maximum_scheduler_search_space_size", 64),
)
