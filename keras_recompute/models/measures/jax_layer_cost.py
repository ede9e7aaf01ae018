"""Memory and cost of one layer on JAX, counted in the program that it traces to.

A layer is traced with its gradient. What equations of the backward pass read of the forward pass is
classified as XLA does when it fuses, and as ``layer_cost`` describes: an operand of a product is an
array; anything else is computed again where it is read, from arrays.

What convolutions and other operations take while they run is not counted. A plan is proved by its
compiled program; this cost says which plans to try first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ...graph_traversal import reachable
from ...liveness.jax_functions import batch_spec as shape_of
from ..execution.array_sizes import spec_bytes
from ..keras_graph.call_graph import Call, Key, as_trained
from .cost_record import LayerCost, Sources
from .time_cuts import noted_loops, with_time_cut

_VIEWS = frozenset("reshape squeeze expand_dims copy stop_gradient".split())
_FREE = _VIEWS | {"broadcast_in_dim"}
# Arithmetic on elements, and layout: XLA repeats these wherever their results are read.
_CHEAP = _VIEWS | frozenset(
    "abs add add_any and broadcast_in_dim clamp convert_element_type div eq ge gt integer_pow iota "
    "is_finite le lt max min mul ne neg not one_minus_square or pad rem rev rsqrt select_n sign "
    "slice sqrt square sub transpose xor".split()
)
# Functions of single elements that take longer than arithmetic, but a fraction of a product's time.
_ELEMENTWISE = frozenset(
    "acos acosh asin asinh atan atanh cos cosh erf erf_inv erfc exp exp2 expm1 log log1p logistic "
    "pow sin sinh tan tanh".split()
)
_CONVOLUTION = "conv_general_dilated"
_PRODUCTS = frozenset({"dot_general", _CONVOLUTION})
_CALLS = frozenset(
    "jit pjit closed_call core_call custom_jvp_call custom_vjp_call checkpoint remat2".split()
)


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of a trace, and its type and shape."""

    aval: Any


@dataclass(frozen=True, eq=False)
class _Equation:
    name: str
    params: Mapping[str, Any]
    inputs: tuple[_Value, ...]
    outputs: tuple[_Value, ...]


class LayerProfiler:
    """Measures calls of layers on JAX. Costs are operations."""

    def __init__(self, specs: Mapping[Key, keras.KerasTensor], *, timed: bool) -> None:
        assert not timed, "layers are timed on TensorFlow alone"
        self._specs = specs

    def __call__(self, call: Call) -> LayerCost:
        """Return what ``call`` needs and costs."""
        return _layer_cost(call, [shape_of(self._specs[key]) for key in call.inputs])


def _layer_cost(call: Call, signature: Sequence[jax.ShapeDtypeStruct]) -> LayerCost:
    variables = list(getattr(call.operation, "trainable_variables", ()))
    weights = [jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in variables]
    floating = [n for n, spec in enumerate(signature) if _is_floating(spec)]

    def forward(inputs: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        values = dict(zip(call.inputs, inputs))
        with keras.StatelessScope(list(zip(variables, weights))):
            as_trained(call).run(values)
        return [values[key] for key in call.outputs]

    # One trace of both passes, so that it is seen what the second reads of the first.
    def both(inputs: list[Any], weights: list[Any], gradients: list[Any]) -> Any:
        def differentiated(chosen: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
            given = list(inputs)
            for number, value in zip(floating, chosen):
                given[number] = value
            return forward(given, weights)

        outputs, pull_back = jax.vjp(differentiated, [inputs[n] for n in floating], weights)
        incoming = []
        for output, gradient in zip(outputs, gradients):
            is_floating = _is_floating(output)
            incoming.append(gradient if is_floating else _no_gradient(output))
        return outputs, pull_back(incoming)

    results = jax.eval_shape(forward, list(signature), weights)
    with noted_loops() as steps:
        traced = jax.make_jaxpr(both)(list(signature), weights, results)
    cost = _Program(traced, len(signature), len(weights), len(results)).cost()
    return with_time_cut(cost, call.operation, steps)


def _no_gradient(output: Any) -> Any:
    # JAX takes zeros of this type alone for the gradient of whole numbers.
    return np.zeros(output.shape, jax.dtypes.float0)


def _is_floating(value: Any) -> bool:
    return bool(jax.numpy.issubdtype(value.dtype, jax.numpy.floating))


class _Needed:
    """Arrays that something is computed from: own ones, inputs and outputs by number."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.inputs: set[int] = set()
        self.outputs: set[int] = set()


class _Program:
    """The equations of a layer's forward and backward pass."""

    def __init__(self, traced: ClosedJaxpr, inputs: int, weights: int, outputs: int) -> None:
        given = [_Value(variable.aval) for variable in traced.jaxpr.invars]
        self._equations: list[_Equation] = []
        self._results = _flat_equations(traced.jaxpr, given, self._equations)[:outputs]
        self._maker: dict[_Value, _Equation] = {}
        for equation in self._equations:
            self._maker.update(dict.fromkeys(equation.outputs, equation))
        self._inputs = {value: number for number, value in enumerate(given[:inputs])}
        self._outputs: dict[_Value, int] = {}
        for number, value in enumerate(self._results):
            if value is not None:
                self._outputs[self._storage_of(value)] = number
        # What depends on gradients, and so is of the backward pass.
        self._behind = set(given[inputs + weights :])
        for equation in self._equations:
            # Equations are in the order of the program, so that one walk finds all.
            if not self._behind.isdisjoint(equation.inputs):
                self._behind.update(equation.outputs)

    def cost(self) -> LayerCost:
        multiplied, read = _Needed(), _Needed()
        for equation in self._equations:
            if self._behind.isdisjoint(equation.outputs):
                continue
            for value in equation.inputs:
                # Single numbers, such as a step or a rate, take no memory to speak of.
                if value in self._behind or not value.aval.ndim:
                    continue
                if equation.name in _PRODUCTS:
                    self._add_array(value, multiplied)
                else:
                    self._add_sources(value, read, _CHEAP)
        needs = frozenset(read.outputs | multiplied.outputs)
        sources, in_section = [], []
        for number in range(len(self._results)):
            found = self._sources_of_output(number, _CHEAP)
            sources.append(found)
            # In a section a result that is a function itself is made again as well, unless the
            # slope reads it.
            is_free = number not in needs or found is not None
            repeated = _CHEAP | _ELEMENTWISE
            in_section.append(self._sources_of_output(number, repeated) if is_free else found)
        kept = {**multiplied.kept, **read.kept}
        results = [value for value in self._results if value is not None]
        forward = reachable(self._makers_of(results), lambda e: self._makers_of(e.inputs))
        return LayerCost(
            kept=kept,
            kept_in_section=kept,
            reads=frozenset(read.inputs),
            multiplies=frozenset(multiplied.inputs),
            needs=needs,
            sources=tuple(sources),
            sources_in_section=tuple(in_section),
            cost=float(sum(map(_operations_of, forward))),
            workspaces=None,
            is_convolution=any(equation.name == _CONVOLUTION for equation in forward),
        )

    def _makers_of(self, values: Sequence[_Value]) -> list[_Equation]:
        return [self._maker[value] for value in values if value in self._maker]

    def _storage_of(self, value: _Value) -> _Value:
        """Return the value that owns the array of ``value``: the one before views."""
        while value in self._maker and self._maker[value].name in _VIEWS:
            value = self._maker[value].inputs[0]
        return value

    def _add_array(self, value: _Value, needs: _Needed) -> None:
        value = self._storage_of(value)
        if value in self._inputs:
            needs.inputs.add(self._inputs[value])
        elif value in self._outputs:
            needs.outputs.add(self._outputs[value])
        elif value in self._maker:  # else it is a weight
            needs.kept[id(value)] = spec_bytes(value.aval)

    def _add_sources(self, value: _Value, needs: _Needed, recomputed: frozenset[str]) -> None:
        """Add the arrays that ``value`` is computed from by ``recomputed`` kinds of equations."""
        waiting, seen = [value], set()
        while waiting:
            value = self._storage_of(waiting.pop())
            if value in seen or not value.aval.ndim:
                continue
            seen.add(value)
            maker = self._maker.get(value)
            if maker is not None and maker.name in recomputed:
                waiting.extend(maker.inputs)
            else:
                self._add_array(value, needs)

    def _sources_of_output(self, number: int, recomputed: frozenset[str]) -> Sources | None:
        found = _Needed()
        value = self._results[number]
        if value is None:
            return {}, frozenset()
        self._add_sources(value, found, recomputed)
        return None if number in found.outputs else (found.kept, frozenset(found.inputs))


def _flat_equations(
    jaxpr: Jaxpr, arguments: Sequence[_Value | None], found: list[_Equation]
) -> list[_Value | None]:
    """Add the equations of ``jaxpr``, and of the functions that it calls, to those ``found``.

    ``arguments`` are its arguments, and the result its results; None stands for a number.
    """
    # A function that is called twice has the same variables both times.
    values: dict[Any, _Value | None] = {v: _Value(v.aval) for v in jaxpr.constvars}
    values.update(zip(jaxpr.invars, arguments))

    def value_of(variable: Any) -> _Value | None:
        return None if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs = list(map(value_of, equation.invars))
        inner = next((p for p in equation.params.values() if isinstance(p, ClosedJaxpr)), None)
        if equation.primitive.name in _CALLS and inner is not None:
            outputs = _flat_equations(inner.jaxpr, inputs[-len(inner.jaxpr.invars) :], found)
        else:
            made = [_Value(v.aval) for v in equation.outvars]
            known = tuple(value for value in inputs if value is not None)
            found.append(_Equation(equation.primitive.name, equation.params, known, tuple(made)))
            outputs = list(made)
        values.update(zip(equation.outvars, outputs))
    return list(map(value_of, jaxpr.outvars))


def _operations_of(equation: _Equation) -> int:
    elements = math.prod(equation.outputs[0].aval.shape)
    if equation.name == "dot_general":
        contracted = equation.params["dimension_numbers"][0][0]
        rows = equation.inputs[0].aval.shape
        return 2 * elements * math.prod(rows[axis] for axis in contracted)
    if equation.name == _CONVOLUTION:
        kernel = equation.inputs[1].aval.shape
        # Each element of the result takes all of the kernel but its own output feature.
        outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2 * elements * math.prod(kernel) // outputs
    # A recurrent layer: the operations of one step, as often as it runs.
    if equation.name == "scan":
        inside: list[_Equation] = []
        body = equation.params["jaxpr"].jaxpr
        _flat_equations(body, [_Value(v.aval) for v in body.invars], inside)
        return equation.params["length"] * sum(map(_operations_of, inside))
    return 0 if equation.name in _FREE else elements
