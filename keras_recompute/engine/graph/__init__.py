"""Graphs of TensorFlow: dataflow, kinds of operations, marks, targets and constants."""

from .annotations import alias_source, inference_alternative, replay_alternative
from .captures import capture_all
from .dataflow import ASSUMED_BATCH, port_refs, producers, tensor_refs, tensor_specs
from .graph_state import kept_with
from .op_sets import CHEAP, CONVOLUTIONS, ELEMENTWISE, MATMULS, SHAPES, SOURCES, VIEWS
from .opaque_values import opaque_false
from .sparse_gradients import densify, is_gathered
from .target_ops import delay, with_body_passes, zeros, zeros_like

__all__ = [
    "ASSUMED_BATCH",
    "CHEAP",
    "CONVOLUTIONS",
    "ELEMENTWISE",
    "MATMULS",
    "SHAPES",
    "SOURCES",
    "VIEWS",
    "alias_source",
    "capture_all",
    "delay",
    "densify",
    "inference_alternative",
    "is_gathered",
    "kept_with",
    "opaque_false",
    "port_refs",
    "producers",
    "replay_alternative",
    "tensor_refs",
    "tensor_specs",
    "with_body_passes",
    "zeros",
    "zeros_like",
]
