from . import calls, graph, inspection, policies, scan
from .capture.custom_vjp import custom_vjp, custom_vjp_twice, in_vectorized_map
from .capture.trace import Trace, trace
from .emit.lowering import lower
from .emit.update_order import ordered_updates, updates_in_backward
from .frontend.build import build
from .frontend.checkpoint import Built, Checkpointed, checkpoint
from .frontend.diagnostics import saves_memory, warn_vectorized
from .frontend.trace_context import trace_context
from .graph.annotations import checkpoint_name
from .partition.partition import Partition
from .partition.scopes import keep_scope, recompute_scope
from .passes import target_now

__all__ = [
    "Built",
    "Checkpointed",
    "Partition",
    "Trace",
    "build",
    "calls",
    "checkpoint",
    "checkpoint_name",
    "custom_vjp",
    "custom_vjp_twice",
    "graph",
    "in_vectorized_map",
    "inspection",
    "keep_scope",
    "lower",
    "ordered_updates",
    "policies",
    "recompute_scope",
    "saves_memory",
    "scan",
    "target_now",
    "trace",
    "trace_context",
    "updates_in_backward",
    "warn_vectorized",
]
