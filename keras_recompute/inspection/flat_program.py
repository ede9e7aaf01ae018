"""A program of JAX as one list of equations: calls, branches of fences and replays are inlined.

A value has a *number* that depends on how it is computed: two values that the same operations make
of the same inputs have the same number. So an equation of the backward pass is a replay if the
forward pass has one of its number. That holds whatever made it run again: our fence,
``jax.checkpoint``, or a gradient that the user wrote.

Source: value numbering, as in common subexpression elimination.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from ..keras_backend.jax_fence import NEVER
from ..seams.jax.tracing import scan_counts

# Equations that are calls of a jaxpr, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
# Their results are their operands. JAX writes the last one around what a policy saves.
_IDENTITIES = ("copy", "optimization_barrier", "reduce_precision")
_VIEWS = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "device_put")
# Transformations in a stack of names: the name of what is transformed stands in parentheses.
_TRANSFORMATION = re.compile(r"\b(?:jvp|transpose|vmap|checkpoint)\(|rematted_computation")


@dataclass(eq=False)
class FlatValue:
    """A value of a flat program.

    Attributes:
        aval: Its type, as JAX describes it.
        number: What it is computed by; equal for equal computations.
        constant: Its elements, if it is a literal.
        is_known: Whether it follows from literals alone.
        name: What ``checkpoint_name`` calls it.
        of_fence: Whether it is what a fence of ours asks for.
    """

    aval: Any
    number: int
    constant: Any = None
    is_known: bool = False
    name: str | None = None
    of_fence: bool = False


@dataclass(eq=False)
class FlatEquation:
    """``results = operation(operands)``, with the layers and the lines that made it.

    ``inner`` are the numbers of what a loop or a branch computes inside.
    """

    operation: str
    operands: tuple[FlatValue, ...]
    results: tuple[FlatValue, ...]
    layer: str
    traceback: Any
    inner: frozenset[int] = frozenset()

    @property
    def is_free(self) -> bool:
        """Whether it only passes values on, or computes what is known without a program."""
        return self.operation in _VIEWS or all(result.is_known for result in self.results)

    @property
    def numbers(self) -> set[int]:
        """The numbers of what it computes."""
        return {result.number for result in self.results} | self.inner


@dataclass
class FlatProgram:
    """The equations of a jaxpr in running order.

    ``boundary`` is how many of them stand before the value that is named so.
    """

    inputs: list[FlatValue] = field(default_factory=list)
    equations: list[FlatEquation] = field(default_factory=list)
    outputs: list[FlatValue] = field(default_factory=list)
    boundary: int = 0


def flatten(closed: Any, boundary: str) -> FlatProgram:
    """Return a closed jaxpr as a flat program, whose captured arrays are its first inputs."""
    inliner = _Inliner(boundary)
    constants = [inliner.new_value(v.aval) for v in closed.jaxpr.constvars]
    arguments = [inliner.new_value(v.aval) for v in closed.jaxpr.invars]
    program = inliner.program
    program.inputs = [*constants, *arguments]
    program.outputs = inliner.inline(closed.jaxpr, constants, arguments, "")
    return program


def live_equations(
    equations: Sequence[FlatEquation], outputs: Iterable[FlatValue]
) -> tuple[list[FlatEquation], set[FlatValue]]:
    """Return the equations that ``outputs`` follow from, and all values that are read."""
    read = set(outputs)
    live = []
    for equation in reversed(equations):
        if read.isdisjoint(equation.results):
            continue
        live.append(equation)
        read.update(equation.operands)
    return live[::-1], read


class _Inliner:
    """Writes the equations of a jaxpr and of what it calls into one program."""

    def __init__(self, boundary: str) -> None:
        self.program = FlatProgram()
        self._boundary = boundary
        self._numbers: dict[Any, int] = {}
        # Of what a loop stacks: the number of one of its slices, inside the loop.
        self._slices: dict[int, int] = {}

    def new_value(self, aval: Any, key: Any = None) -> FlatValue:
        """Return a value that nothing computes; those of one ``key`` have one number."""
        return FlatValue(aval, self._number(object() if key is None else key))

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _literal(self, literal: Any) -> FlatValue:
        value = np.asarray(literal.val)
        key = "literal", str(literal.aval), value.tobytes()
        is_never = value.size == 1 and value.dtype == np.uint32 and int(value) == NEVER
        return FlatValue(literal.aval, self._number(key), value, is_known=True, of_fence=is_never)

    def inline(
        self,
        jaxpr: Any,
        constants: Sequence[FlatValue],
        arguments: Sequence[FlatValue],
        layer: str,
    ) -> list[FlatValue]:
        """Write the equations of ``jaxpr`` and return its results."""
        values = dict(zip(jaxpr.constvars, constants))
        values.update(zip(jaxpr.invars, arguments))

        def value_of(atom: Any) -> FlatValue:
            return self._literal(atom) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            operands = [value_of(atom) for atom in equation.invars]
            names = [layer, _layers_in(str(equation.source_info.name_stack))]
            results = self._write(equation, operands, "/".join(filter(None, names)))
            values.update(zip(equation.outvars, results))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _write(self, equation: Any, operands: list[FlatValue], layer: str) -> list[FlatValue]:
        name, parameters = equation.primitive.name, equation.params
        if name in _IDENTITIES and _keeps_type(equation):
            return operands
        if name == "name":
            return self._mark(parameters["name"], operands)
        called = parameters.get(_CALLS.get(name, ""))
        if name == "cond" and operands[0].of_fence:
            # The branch that is taken: it replays.
            called, operands = parameters["branches"][1], operands[1:]
        if called is not None:
            return self._call(called, operands, layer)
        numbers = tuple(operand.number for operand in operands)
        key = name, _text_of(parameters), numbers
        results = []
        for position, variable in enumerate(equation.outvars):
            value = self.new_value(variable.aval, (key, position))
            # The predicate of a fence is made of what it asks for by comparisons alone.
            value.of_fence = any(operand.of_fence for operand in operands) and not value.aval.shape
            value.is_known = all(operand.is_known for operand in operands)
            results.append(value)
        # Of a call that is not inlined it is enough that something inside runs again.
        inner = self._inner_numbers(equation, operands, results)
        traceback = equation.source_info.traceback
        self.program.equations.append(
            FlatEquation(name, tuple(operands), tuple(results), layer, traceback, inner)
        )
        return results

    def _mark(self, name: str, operands: list[FlatValue]) -> list[FlatValue]:
        """Return the operands themselves: a value and its named copy are one."""
        if name == self._boundary:
            self.program.boundary = len(self.program.equations)
        else:
            operands[0].name = name
        return operands

    def _call(self, called: Any, operands: list[FlatValue], layer: str) -> list[FlatValue]:
        jaxpr = getattr(called, "jaxpr", called)
        constants = [self._captured(value) for value in getattr(called, "consts", ())]
        return self.inline(jaxpr, constants, operands, layer)

    def _captured(self, value: Any) -> FlatValue:
        return self.new_value(jax.typeof(value), ("captured", id(value)))

    def _inner_numbers(
        self, equation: Any, operands: list[FlatValue], results: list[FlatValue]
    ) -> frozenset[int]:
        """Return the numbers of what the jaxprs of a loop, branch or other call compute."""
        found: set[int] = set()
        for jaxpr, arguments in self._bodies(equation, operands):
            inliner = _Inliner(self._boundary)
            inliner._numbers, inliner._slices = self._numbers, self._slices
            made = inliner._call(jaxpr, arguments, "")
            if equation.primitive.name == "scan":
                stacked = slice(scan_counts(equation.params)[1], None)
                pairs = zip(results[stacked], made[stacked])
                self._slices.update((stack.number, part.number) for stack, part in pairs)
            for inner in inliner.program.equations:
                if not inner.is_free:
                    found |= inner.numbers
        return frozenset(found)

    def _bodies(
        self, equation: Any, operands: list[FlatValue]
    ) -> list[tuple[Any, list[FlatValue]]]:
        """Return the jaxprs of an equation, each with its arguments as values."""
        name, parameters = equation.primitive.name, equation.params
        if name == "scan":
            jaxpr = parameters["jaxpr"]
            constants, carried = scan_counts(parameters)
            arguments = list(operands[:constants])
            for position, variable in enumerate(jaxpr.jaxpr.invars[constants:]):
                number = operands[constants + position].number
                role = "carry" if position < carried else "slice"
                value = self.new_value(variable.aval, (role, number, parameters["length"]))
                if role == "slice":
                    value.number = self._slices.get(number, value.number)
                arguments.append(value)
            return [(jaxpr, arguments)]
        if name == "cond":
            return [(branch, operands[1:]) for branch in parameters["branches"]]
        bodies = []
        for jaxpr in jaxprs_in_params(parameters):
            arguments = []
            for number, variable in enumerate(jaxpr.invars):
                same_count = len(jaxpr.invars) == len(operands)
                key = ("argument", operands[number].number) if same_count else None
                arguments.append(self.new_value(variable.aval, key))
            bodies.append((jaxpr, arguments))
        return bodies


def _keeps_type(equation: Any) -> bool:
    """Return whether an identity leaves each element as it is."""
    if equation.primitive.name != "reduce_precision":
        return True
    kept = jnp.finfo(equation.invars[0].aval.dtype)
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    return bits == (kept.nexp, kept.nmant)


def _text_of(parameters: dict[str, Any]) -> str:
    """Return parameters as a text, without functions, whose addresses differ."""
    parts = []
    for name, value in sorted(parameters.items()):
        if not callable(value):
            parts.append(f"{name}={value}")
    return ";".join(parts)


def _layers_in(name_stack: str) -> str:
    """Return the names in a stack of names that are no transformations and no scopes of ours."""
    names = _TRANSFORMATION.sub("", name_stack).replace(")", "").split("/")
    return "/".join(name for name in names if name and not name.startswith("recomputation."))
