"""The inspection of a function on JAX: its residuals, its two programs, and what it repeats.

The function and its gradient are traced into one jaxpr, in which a mark stands between forward and
backward pass. A residual is a value from before the mark that is read behind it. So the rows are
true of the branch that recomputes on a CPU as of ``jax.checkpoint``.

Source: ``jax.ad_checkpoint.print_saved_residuals``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ..engine.inspection import (
    Equation,
    ForwardBackward,
    Letters,
    ProgramText,
    Residual,
    Value,
    constant_text,
    no_input_text,
    no_result_text,
    type_text,
)
from ..engine.policies import Decision
from ..errors import InvalidArgumentError
from ..keras_backend.jax_fence import is_differentiable
from ..seams.keras.call_context import autocast_to
from ..user_code import Source, source_among
from .flat_program import FlatEquation, FlatProgram, FlatValue, flatten, live_equations
from .inputs import Call, ReadingScope, built, call_of

_BOUNDARY = "keras_recompute.end_of_forward_pass"


@dataclass(frozen=True)
class _Analysis:
    """The program of a function and of its gradient.

    Attributes:
        inputs: What each input of the program is: its kind and its name.
        forward: The equations of the forward pass that results or residuals follow from.
        backward: The equations of the backward pass that gradients follow from.
        read: The values that the backward pass reads.
    """

    program: FlatProgram
    inputs: dict[FlatValue, tuple[str, str]]
    incoming: tuple[FlatValue, ...]
    results: tuple[FlatValue, ...]
    gradients: tuple[FlatValue, ...]
    forward: list[FlatEquation]
    backward: list[FlatEquation]
    read: set[FlatValue]

    @property
    def saved(self) -> list[tuple[FlatValue, FlatEquation]]:
        """The values that the forward pass makes and the backward pass reads."""
        found = []
        for equation in self.forward:
            found += [(value, equation) for value in equation.results if value in self.read]
        return found

    def is_replayed(self, equation: FlatEquation) -> bool:
        """Whether the forward pass computes the same as this equation of the backward pass."""
        return not equation.numbers.isdisjoint(self._forward_numbers)

    @property
    def _forward_numbers(self) -> set[int]:
        computed: set[int] = set()
        for equation in self.forward:
            if not equation.is_free:
                computed |= equation.numbers
        return computed


def saved_residuals(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Residual, ...]:
    """Return a row for each value that stays in memory between forward and backward pass.

    Inputs that the backward pass reads come first, then results in running order. ``fn`` is traced
    for these arguments, not run. Raises InvalidArgumentError if nothing has a gradient.
    """
    found = _analyze(fn, args, kwargs)
    rows = []
    for value, (kind, name) in found.inputs.items():
        if value in found.read:
            rows.append(_row(value, kind, name, Decision.SAVE))
    for value, equation in found.saved:
        rows.append(_row_of_result(value, equation, found))
    return tuple(rows)


def replay_count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Return how many operations of the forward pass the backward pass of ``fn`` repeats.

    Operations of functions that are called inside count too, and a loop counts as one. Constants,
    and operations that pass values on or reshape them, do not count. ``fn`` is traced, not run.
    """
    found = _analyze(fn, args, kwargs)
    computed = [equation for equation in found.backward if not equation.is_free]
    return sum(map(found.is_replayed, computed))


def forward_backward(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForwardBackward:
    """Return the forward and the backward program of ``fn``, traced but not run.

    The forward program returns the results of ``fn`` that have a gradient, then the saved values.
    The backward program takes the inputs that it reads, the saved values and the gradients of the
    results. It returns the gradients of the inputs that have one.
    """
    found = _analyze(fn, args, kwargs)
    letters = Letters(id)
    saved = [value for value, _ in found.saved]
    forward_reads = {value for each in found.forward for value in each.operands}
    forward_reads |= set(found.results)
    origins = {value: " ".join(names).rstrip() for value, names in found.inputs.items()}
    forward_inputs = {value: text for value, text in origins.items() if value in forward_reads}
    backward_inputs = {value: text for value, text in origins.items() if value in found.read}
    backward_inputs.update(dict.fromkeys(saved, "saved"))
    backward_inputs.update(dict.fromkeys(found.incoming, "gradient of a result"))
    return ForwardBackward(
        _text(found, found.forward, forward_inputs, [*found.results, *saved], letters),
        _text(found, found.backward, backward_inputs, found.gradients, letters),
    )


def _analyze(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Analysis:
    call = call_of(fn, args, kwargs, _flatten_with_path)
    variables = _variables_read(call)
    given = [*call.tensors, *map(_value_of, variables)]
    numbers = [number for number, value in enumerate(given) if is_differentiable(value)]
    dtypes: list[str] = []

    def results(*values: Any) -> list[Any]:
        """Return the results of ``fn`` that have a gradient."""
        arguments, of_variables = values[: len(call.tensors)], values[len(call.tensors) :]
        with ReadingScope(list(zip(variables, of_variables))):
            leaves = jax.tree.leaves(call(arguments))
        arrays = [leaf for leaf in leaves if keras.ops.is_tensor(leaf)]
        dtypes[:] = [str(array.dtype) for array in arrays]
        return [array for array in arrays if is_differentiable(array)]

    outputs = jax.eval_shape(results, *given)
    if not outputs:
        raise InvalidArgumentError(no_result_text(call.name, dtypes))
    if not numbers:
        inputs = [(path, str(value.dtype)) for path, value in zip(call.paths, call.tensors)]
        raise InvalidArgumentError(no_input_text(call.name, inputs, "jnp.array(3.0)"))

    def both_passes(*values: Any) -> tuple[list[Any], tuple[Any, ...]]:
        every, incoming = list(values[: len(given)]), list(values[len(given) :])

        def by_chosen(*chosen: Any) -> list[Any]:
            for number, value in zip(numbers, chosen):
                every[number] = value
            return results(*every)

        made, pull_back = jax.vjp(by_chosen, *(every[number] for number in numbers))
        # Traced behind the forward pass, and read by all of the backward pass.
        incoming[0] = checkpoint_name(incoming[0], _BOUNDARY)
        return made, pull_back(incoming)

    traced = jax.make_jaxpr(both_passes)(*given, *outputs)
    named = [("argument", path) for path in call.paths]
    named += [("variable", variable.path) for variable in variables]
    return _split(flatten(traced, _BOUNDARY), named, len(outputs))


def _split(program: FlatProgram, named: Sequence[tuple[str, str]], count: int) -> _Analysis:
    """Return the two passes of a program with ``count`` results, whose inputs are ``named``."""
    results, gradients = program.outputs[:count], program.outputs[count:]
    before = program.equations[: program.boundary]
    backward, read = live_equations(program.equations[program.boundary :], gradients)
    made_before = {value for equation in before for value in equation.results}
    forward, _ = live_equations(before, [*results, *(read & made_before)])
    incoming = program.inputs[len(program.inputs) - count :]
    captured = program.inputs[: len(program.inputs) - count - len(named)]
    inputs = dict(zip(program.inputs[len(captured) :], named))
    inputs.update((value, ("captured tensor", "")) for value in captured)
    return _Analysis(
        program, inputs, tuple(incoming), tuple(results), tuple(gradients), forward, backward, read
    )


def _variables_read(call: Call) -> list[Any]:
    """Return the variables of Keras that a function reads, once they have values."""
    while True:
        with ReadingScope() as scope:
            jax.eval_shape(lambda *arrays: _arrays_in(call(arrays)), *call.tensors)
        read = list(scope.read.values())
        if built(read):
            return read


def _arrays_in(results: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(results) if keras.ops.is_tensor(leaf)]


def _value_of(variable: Any) -> jax.Array:
    with autocast_to(None):
        return variable.value


def _flatten_with_path(value: Any) -> tuple[list[tuple[str, Any]], Callable[..., Any]]:
    found, structure = jax.tree_util.tree_flatten_with_path(value)
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in found]
    return leaves, lambda new: jax.tree.unflatten(structure, new)


def _row_of_result(value: FlatValue, equation: FlatEquation, found: _Analysis) -> Residual:
    """Return the row of a value that the forward pass makes."""
    decision = Decision.SAVE
    if equation.operation == "device_put" and _is_on_host(value.aval):
        # What was copied to the host is told by where it comes from.
        decision = Decision.OFFLOAD
        (source,) = equation.operands
        makers = [each for each in found.forward if source in each.results]
        value, equation = source, makers[0] if makers else equation
    place = _source_of(equation)
    if value.name is not None:
        return _row(value, "name", value.name, decision, place, equation.layer)
    return _row(value, "operation", equation.operation, decision, place, equation.layer)


def _is_on_host(aval: Any) -> bool:
    return getattr(aval, "memory_space", None) == jax.memory.Space.Host


def _row(
    value: FlatValue,
    kind: str,
    origin: str,
    decision: Decision,
    source: Source | None = None,
    layer: str = "",
) -> Residual:
    shape, dtype = value.aval.shape, value.aval.dtype
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return Residual(str(dtype), tuple(shape), size, kind, origin, source, decision, layer)


def _source_of(equation: FlatEquation) -> Source | None:
    frames = equation.traceback.frames if equation.traceback is not None else ()
    return source_among((f.file_name, f.line_num, _function_of(f)) for f in frames)


def _function_of(frame: Any) -> str:
    """Return the name of the function, without those that it is defined in."""
    return frame.function_name.rsplit(".", 1)[-1]


def _text(
    found: _Analysis,
    equations: Sequence[FlatEquation],
    origins: dict[FlatValue, str],
    outputs: Sequence[FlatValue],
    letters: Letters,
) -> ProgramText:
    is_backward = equations is found.backward

    def text_of(value: FlatValue) -> Value:
        shown = type_text(str(value.aval.dtype), tuple(value.aval.shape))
        return Value(letters(value), shown, origins.get(value, ""))

    def letter_of(value: FlatValue) -> str:
        if value.constant is not None:
            letters.write_as(value, constant_text(value.constant))
        return letters(value)

    inputs = tuple(map(text_of, origins))
    written = []
    for equation in equations:
        replayed = is_backward and not equation.is_free and found.is_replayed(equation)
        operands = tuple(map(letter_of, equation.operands))
        results = tuple(Value(v.letter, v.type) for v in map(text_of, equation.results))
        written.append(Equation(results, equation.operation, operands, replayed))
    return ProgramText(inputs, tuple(written), tuple(map(letter_of, outputs)))
