"""The numbered parameters of a compiled program as weights, optimiser state and inputs.

A compiler sees numbered parameters. TensorFlow knows more: the inputs of a traced function are the
tensors among its arguments, in order, and then its captures. A resource is a variable; anything
else is data. An input that the program needs as a constant is folded and gets no parameter, so
inputs are matched with parameters by size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence

from ..errors import InvalidArgumentError, ReportError
from .categories import INPUT, OPTIMISER, OTHER, WEIGHT, optimiser_scopes, variable_category


@dataclass(frozen=True)
class Parameter:
    """Description of one parameter of a program, as passed to ``read_hlo_proto``.

    Attributes:
        name: The name of its buffer.
        category: ``"weight"``, ``"optimiser"``, ``"input"`` or ``"other"``.
        fed: Whether it is the data of one execution.
        size_bytes: Its size; None matches any.
        layer: The layer of a variable; for the state of an optimiser, that of the weight.

    Examples:
        >>> compiled = kr.liveness.compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> x = kr.liveness.Parameter("x", "input", fed=True)
        >>> kr.liveness.read_hlo_proto(compiled.serialized, parameters=[x]).input_feed_bytes
        16384
    """

    name: str
    category: str = OTHER
    fed: bool = False
    size_bytes: int | None = None
    layer: str | None = None


def describe_inputs(concrete: Any, input_feed: Sequence[int | str]) -> list[Parameter]:
    """Return a description of each input of a concrete function, with ``input_feed`` marked as fed.

    Variables are named by path (Keras: ``"net/lstm/lstm_cell/kernel"``), arguments by name, or by
    name and number (``"batch[1]"``) if an argument holds several tensors. Raises
    InvalidArgumentError for a feed that does not exist or is a variable.
    """
    count = len(concrete.inputs) - len(concrete.captured_inputs)
    arguments = _argument_names(concrete, count)
    described = list(map(_argument, arguments, concrete.inputs))
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    found = describe_variables([(_path(v), _size(v)) for v in variables.values()])
    described_variables = dict(zip(variables, found))
    for captured, tensor in zip(concrete.captured_inputs, concrete.inputs[count:]):
        variable = described_variables.get(id(captured))
        described.append(_argument(tensor.op.name, tensor) if variable is None else variable)
    mark_fed(described, input_feed)
    return described


def describe_variables(variables: Sequence[tuple[str, int | None]]) -> list[Parameter]:
    """Return a description of each variable, given its path and its size in bytes.

    They are weights or the state of an optimiser.
    """
    scopes = optimiser_scopes(path for path, _ in variables)
    weights = [path for path, _ in variables if variable_category(path, scopes) == WEIGHT]
    described = []
    for path, size_bytes in variables:
        category = variable_category(path, scopes)
        layer = _layer(path, category, weights)
        described.append(Parameter(path, category, size_bytes=size_bytes, layer=layer))
    return described


def mark_fed(described: list[Parameter], input_feed: Sequence[int | str]) -> None:
    """Mark the data arguments among ``described`` that ``input_feed`` names.

    Raises InvalidArgumentError for a name that none has.
    """
    data = [n for n, parameter in enumerate(described) if parameter.category == INPUT]
    for wanted in input_feed:
        is_found = False
        for n in data:
            name = described[n].name
            if wanted in (n, name, name.split("[")[0]):
                described[n] = replace(described[n], fed=True)
                is_found = True
        if not is_found:
            known = ", ".join(f"{n}: {described[n].name}" for n in data) or "none"
            raise InvalidArgumentError(
                f"input_feed names {wanted!r}, which is not a data argument of the function: give "
                f"some of {known}"
            )


def match_parameters(described: Sequence[Parameter], sizes: Sequence[int]) -> list[Parameter]:
    """Return one description per parameter of ``sizes`` bytes, without those of folded inputs.

    Raises ReportError if they cannot be matched in order.
    """
    matched: list[Parameter] = []
    remaining = list(described)
    # From the end, where the variables are: they are never folded into the program.
    for missing, size in enumerate(reversed(sizes)):
        while (
            remaining
            and remaining[-1].size_bytes not in (None, size)
            and len(remaining) > len(sizes) - missing
        ):
            remaining.pop()
        if not remaining or remaining[-1].size_bytes not in (None, size):
            raise ReportError(
                f"the parameters of the program have {list(sizes)} bytes and the inputs of the "
                f"function {[p.size_bytes for p in described]}: they belong to different programs"
            )
        matched.append(remaining.pop())
    return matched[::-1]


def _layer(path: str, category: str, weights: Sequence[str]) -> str | None:
    """Return the layer of a variable.

    ``"net/lstm"`` for ``"net/lstm/kernel"``, and for ``"adam/net_lstm_kernel_momentum"``.
    """
    if category == OPTIMISER:
        slot = path.partition("/")[2]
        path = ""
        for weight in weights:
            is_of_slot = slot.startswith(f"{weight.replace('/', '_')}_")
            if is_of_slot and len(weight) > len(path):
                path = weight
    return path.rpartition("/")[0] or None


def _argument_names(concrete: Any, count: int) -> list[str]:
    names = []
    for name, parameter in concrete.function_type.parameters.items():
        leaves = len(parameter.type_constraint.flatten())
        names += [name] if leaves == 1 else [f"{name}[{n}]" for n in range(leaves)]
    return names if len(names) == count else [tensor.op.name for tensor in concrete.inputs[:count]]


def _argument(name: str, tensor: Any) -> Parameter:
    if tensor.dtype.name == "resource":
        return Parameter(name, WEIGHT)
    return Parameter(name, INPUT, size_bytes=_size(tensor))


def _size(tensor: Any) -> int | None:
    elements = tensor.shape.num_elements()
    return None if elements is None else elements * tensor.dtype.size


def _path(variable: Any) -> str:
    return variable.name.rsplit(":", 1)[0]
