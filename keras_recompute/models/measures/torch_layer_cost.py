"""Memory and cost of one layer on PyTorch, from one run on fake tensors.

What autograd saves is what stays: PyTorch fuses nothing. So every saved tensor is an array, of the
layer's own, of its inputs or of its outputs. Operations are what PyTorch's own counter finds in
products and convolutions, and one for each element of a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import torch
from torch.utils.flop_counter import FlopCounterMode

from ...keras_backend.torch_values import storage_of
from ...liveness.torch_fake_runs import fake_of, fake_run
from ...seams.keras.layers import backend_variable, layers_in
from ..keras_graph.call_graph import Call, Key, as_trained
from .cost_record import LayerCost
from .time_cuts import noted_loops, with_time_cut


class LayerProfiler:
    """Measures calls of layers on PyTorch. Costs are operations."""

    def __init__(self, specs: Mapping[Key, keras.KerasTensor], *, timed: bool) -> None:
        assert not timed, "layers are timed on TensorFlow alone"
        self._specs = specs

    def __call__(self, call: Call) -> LayerCost:
        """Return what ``call`` needs and costs."""
        return _layer_cost(call, [self._specs[key] for key in call.inputs])


def _layer_cost(call: Call, signature: Sequence[keras.KerasTensor]) -> LayerCost:
    operation = call.operation
    is_layer = isinstance(operation, keras.layers.Layer)
    variables = operation.variables if is_layer else []
    saved: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with fake_run(variables, layers_in(operation) if is_layer else ()):
        inputs = list(map(fake_of, signature))
        for tensor in inputs:
            if tensor.is_floating_point():
                tensor.requires_grad_()
        values = dict(zip(call.inputs, inputs))
        counter = FlopCounterMode(display=False)
        noted = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with counter, noted, noted_loops() as steps:
            as_trained(call).run(values)
        outputs = [values[key] for key in call.outputs]
        of_inputs = {id(storage_of(tensor)): n for n, tensor in enumerate(inputs)}
        of_outputs = {id(storage_of(tensor)): n for n, tensor in enumerate(outputs)}
        of_weights = {id(storage_of(backend_variable(variable))) for variable in variables}
        kept: dict[int, int] = {}
        reads, needs = set(), set()
        for tensor in saved:
            storage = storage_of(tensor)
            if id(storage) in of_inputs:
                reads.add(of_inputs[id(storage)])
            elif id(storage) in of_outputs:
                needs.add(of_outputs[id(storage)])
            elif id(storage) not in of_weights and storage is not None:
                kept[id(storage)] = storage.nbytes()
        made = sum(tensor.numel() for tensor in outputs)
        operations = float(counter.get_total_flops() + made)
    # Nothing is fused, so that no result is computed again from its sources.
    own = (None,) * len(outputs)
    cost = LayerCost(
        kept=kept,
        kept_in_section=kept,
        reads=frozenset(),
        multiplies=frozenset(reads),
        needs=frozenset(needs),
        sources=own,
        sources_in_section=own,
        cost=operations,
        workspaces=None,
    )
    return with_time_cut(cost, operation, steps)
