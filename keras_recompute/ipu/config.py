"""``tensorflow.python.ipu.config``: the configuration tree, its checks, and the configuration in force.

Types are checked strictly and unknown names refused, as Graphcore's own class does (contract section 2). Options that
have no meaning on stock TensorFlow are accepted and remembered.
"""

from __future__ import annotations

import difflib
import enum
from typing import Any


class SelectionOrder(enum.Enum):
    """In which order IPUs are chosen."""

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


_POPLAR: dict[str, Any] = {"poplar_options": {}}
_DEFAULTS: dict[str, Any] = {
    "auto_select_ipus": [],
    "select_ipus": [],
    "allow_recompute": False,
    "selection_order": SelectionOrder.AUTO,
    "serialization_output_folder": "",
    "compilation_poplar_options": {},
    "gcl_poplar_options": {},
    "convolutions": _POPLAR,
    "matmuls": _POPLAR,
    "pooling": _POPLAR,
    "slices": _POPLAR,
    "device_connection": {"version": "", "type": DeviceConnectionType.ALWAYS, "enable_remote_buffers": False},
    "floating_point_behaviour": {"inv": False, "div0": False, "oflo": False, "esr": "OFF", "nanoo": False, "set_all": False},
    "io_tiles": {"num_io_tiles": 0, "place_ops_on_io_tiles": False, "available_memory_proportion": 0.9},
    "ipu_model": {"compile_ipu_code": True, "tiles_per_ipu": 0, "version": "ipu2"},
    "norms": {
        "use_stable_statistics": False,
        "experimental": {"distributed_batch_norm_replica_group_size": 1},
    },
    "optimizations": {
        "math": {"fast": False, "dot_strength": True},
        "prefetch_data_streams": True,
        "combine_embedding_lookups": False,
        "combine_matmuls": False,
        "enable_graph_outlining": True,
        "merge_infeed_io_copies": True,
        "maximum_cross_replica_sum_buffer_size": 0,
        "maximum_reduce_scatter_buffer_size": 0,
        "maximum_inter_ipu_copies_buffer_size": 0,
        "maximum_send_recv_cluster_size": 0,
        "minimum_remote_tensor_size": 128,
        "merge_remote_buffers": MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "enable_gather_simplifier": False,
        "triangular_solve_expander_block_size": 0,
        "cholesky_block_size": 0,
        "enable_fast_math": False,
    },
    "scheduling": {
        "algorithm": SchedulingAlgorithm.CHOOSE_BEST,
        "maximum_scheduler_lookahead_depth": 5,
        "maximum_scheduler_search_space_size": 64,
    },
    "experimental": {"always_rearrange_copies_on_the_host": False, "enable_prng_stability": False},
}
# Attributes that hold a dictionary of options, as opposed to categories, which only hold other attributes.
_OPTIONS = ("compilation_poplar_options", "gcl_poplar_options", "poplar_options")


class _Category:
    """A node of the tree. Attributes are those of its defaults and no others."""

    def __init__(self, path: str, defaults: dict[str, Any]) -> None:
        values = {}
        for name, default in defaults.items():
            is_category = isinstance(default, dict) and name not in _OPTIONS
            full = f"{path}{name}"
            values[name] = _Category(f"{full}.", default) if is_category else _copy(default)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._require(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._require(name)
        current, full = self._values[name], f"{self._path}{name}"
        if isinstance(current, _Category):
            raise Exception(f"{full!r} is a category, not an option: set one of {', '.join(current._values)} in it")
        _check_type(full, value, current)
        self._values[name] = value

    def _require(self, name: str) -> None:
        if name not in self._values:
            near = difflib.get_close_matches(name, self._values, n=1)
            hint = f" Did you mean {self._path + near[0]!r}?" if near else f" There are: {', '.join(self._values)}."
            raise ValueError(f"{self._path + name!r} is not an option of IPUConfig.{hint}")

    def to_dict(self) -> dict[str, Any]:
        """Return all options by their full name."""
        options: dict[str, Any] = {}
        for name, value in self._values.items():
            options.update(value.to_dict() if isinstance(value, _Category) else {f"{self._path}{name}": value})
        return options

    def __str__(self) -> str:
        return "\n".join(f"{name} = {value}" for name, value in self.to_dict().items())


class IPUConfig(_Category):
    """How this machine's IPUs are to be used. Set attributes, then call ``configure_ipu_system()``."""

    def __init__(self) -> None:
        super().__init__("", _DEFAULTS)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Put this configuration in force. Raises an Exception if IPUs are selected in two ways."""
        del device
        if self.auto_select_ipus and self.select_ipus:
            raise Exception("both auto_select_ipus and select_ipus are set: set one of them")
        if len(set(self.select_ipus if isinstance(self.select_ipus, (list, tuple)) else ())) != (
            len(self.select_ipus) if isinstance(self.select_ipus, (list, tuple)) else 0
        ):
            raise ValueError(f"select_ipus={self.select_ipus!r} names a device twice")
        _in_force.append(self)


_in_force: list[IPUConfig] = []


def current() -> IPUConfig:
    """Return the configuration in force, or the defaults."""
    return _in_force[-1] if _in_force else IPUConfig()


def configure_ipu_system(config: IPUConfig, device: str = "cpu") -> None:
    """Put ``config`` in force."""
    config.configure_ipu_system(device)


def reset_ipu_configuration() -> None:
    """Go back to the defaults."""
    _in_force.clear()


def _copy(default: Any) -> Any:
    return type(default)(default) if isinstance(default, (list, dict)) else default


def _check_type(full: str, value: Any, current: Any) -> None:
    if full in ("auto_select_ipus", "select_ipus"):
        items = value if isinstance(value, (list, tuple)) else [value]
        wanted: str | None = "int, or list or tuple of int"
        fits = all(type(item) is int for item in items)
    else:
        wanted = type(current).__name__
        fits = type(value) is type(current)
    if not fits:
        raise TypeError(f"{full!r} must be of type {wanted}, but was given {value!r} of type {type(value).__name__}")
