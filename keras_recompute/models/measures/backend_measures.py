"""What plans need of the backend that Keras runs on, measured or compiled.

The interface: ``batch_spec``, ``first_batch``, ``specs_from_sample``, ``targets_in`` and
``value_specs`` are types and shapes of a batch and of all values of a graph; ``text_of_specs``
writes them. ``build_by_step`` has a model make its variables by its own step. A ``LayerProfiler``
returns the ``LayerCost`` of a call. ``trained_step`` is the step of ``fit``, which can be
``compiled`` for a model and for others that share its layers; ``reason_to_wait`` says why its
updates wait, and ``PLAIN_UPDATES_WAIT`` whether those of a plain model do.
``seconds_with_jit_and_without`` times it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...keras_backend import JAX, TENSORFLOW, TORCH, current_backend

if TYPE_CHECKING or current_backend() == TENSORFLOW:
    from ...liveness.tensorflow_functions import batch_spec
    from ..execution.input_specs import (
        first_batch,
        specs_from_sample,
        targets_in,
        text_of_specs,
        value_specs,
    )
    from .layer_cost import LayerProfiler
    from .step_time import seconds_with_jit_and_without
    from .trained_step import build_by_step, reason_to_wait, trained_step
else:
    from .batch_specs import batch_spec, first_batch, targets_in, text_of_specs
    from .step_defaults import build_by_step, seconds_with_jit_and_without

    if current_backend() == JAX:
        from .jax_graph_specs import specs_from_sample, value_specs
        from .jax_layer_cost import LayerProfiler
        from .jax_trained_step import TrainedStep, reason_to_wait
    else:
        from .torch_graph_specs import specs_from_sample, value_specs
        from .torch_layer_cost import LayerProfiler
        from .torch_trained_step import TrainedStep, reason_to_wait

    trained_step = TrainedStep.of_model

# On PyTorch Keras's backward pass ends before its optimizer begins.
PLAIN_UPDATES_WAIT = current_backend() == TORCH

__all__ = [
    "PLAIN_UPDATES_WAIT",
    "LayerProfiler",
    "batch_spec",
    "build_by_step",
    "first_batch",
    "reason_to_wait",
    "seconds_with_jit_and_without",
    "specs_from_sample",
    "targets_in",
    "text_of_specs",
    "trained_step",
    "value_specs",
]
