"""A compiled program as XLA serializes it, with what is known of its inputs and layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Collection, Mapping, Protocol, Sequence

from ..errors import InvalidArgumentError
from .keras_step import DATA_NAMES
from .parameters import Parameter
from .program import Program
from .unrolled_loop import Mark
from .xla_reader import read_hlo_proto

TIMEOUT_SECONDS = 600  # how long the compiler of another device may take by default


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program as XLA serializes it, with its inputs and layers; ``program`` reads it.

    Attributes:
        serialized: The bytes that XLA's own viewers read; ``report.write_report`` keeps them.
        parameters: What is known of the inputs.
        compile_seconds: How long compilation took.
        layers: Names of all layers of the model; empty if unknown.
        sources: Lines of the user's code by operation.
        compiled_by: Name and version of the compiler.
        capacity_bytes: Memory of the device that it was compiled for, if one was named.
        stated: Memory statistics of the compiler itself, in bytes by kind.
    """

    serialized: bytes = field(repr=False)
    parameters: tuple[Parameter, ...] = ()
    compile_seconds: float | None = None
    layers: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    compiled_by: str = "xla"
    capacity_bytes: int | None = None
    stated: Mapping[str, int] = field(default_factory=dict)

    def program(
        self, *, capacity_bytes: int | None = None, turns: Sequence[Collection[Mark]] = ()
    ) -> Program:
        """Return the record of the program.

        ``capacity_bytes`` is the memory of the device, by default of the one compiled for. With
        ``turns`` the trips of a loop are unrolled (see ``read_hlo_proto``). Raises ReportError if
        the program cannot be read.
        """
        return read_hlo_proto(
            self.serialized,
            parameters=self.parameters,
            layers=self.layers,
            sources=self.sources,
            capacity_bytes=self.capacity_bytes if capacity_bytes is None else capacity_bytes,
            compile_seconds=self.compile_seconds,
            compiled_by=self.compiled_by,
            stated=self.stated,
            turns=turns,
        )


class TracedFunction(Protocol):
    """A traced function that can be compiled: the interface of Keras's backends."""

    def compile(self, timeout_seconds: float) -> CompiledProgram:
        """Compile it for the device that it was traced for."""

    def run(self, *, reserved_bytes: int) -> tuple[int | None, str | None]:
        """Run it twice here; return the bytes that the second run took, and who measured them.

        ``reserved_bytes`` is what its program asks for.
        """


def batch_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of a batch, ``x``, ``y`` and ``sample_weight``, as far as they are given.

    Raises InvalidArgumentError for other names, for what is no array, and for arrays with different
    numbers of rows.
    """
    unknown = kwargs.keys() - set(DATA_NAMES[len(args) :])
    if unknown:
        raise InvalidArgumentError(
            f"profile(model, x, y) got {sorted(unknown)}; a batch is {', '.join(DATA_NAMES)}"
        )
    data = [*args, *map(kwargs.get, DATA_NAMES[len(args) :])]
    while data and data[-1] is None:
        data.pop()
    rows: dict[int, str] = {}
    for name, part in zip(DATA_NAMES, data):
        _check_arrays(name, part, rows)
    if len(rows) > 1:
        counts = " and ".join(f"{name} of {count:,}" for count, name in rows.items())
        raise InvalidArgumentError(
            f"profile(model, x, y) takes one batch, and this one has {counts} rows: give as many "
            "of each"
        )
    return tuple(data)


def _check_arrays(name: str, part: Any, rows: dict[int, str]) -> None:
    """Raise InvalidArgumentError unless ``part`` is a nest of arrays or specs; note their rows."""
    if isinstance(part, (list, tuple, dict)):
        for each in part.values() if isinstance(part, dict) else part:
            _check_arrays(name, each, rows)
        return
    shape = getattr(part, "shape", None)
    if shape is None:
        raise InvalidArgumentError(
            f"profile(model, x, y) takes arrays, and {name} is or contains {part!r:.60}, a "
            f"{type(part).__name__}. Make arrays of lists by numpy.array, and give one batch of "
            "a data set, as next(iter(dataset)) returns it"
        )
    # Of an unknown rank nothing is known.
    if getattr(shape, "rank", 1) and shape and isinstance(shape[0], int):
        rows.setdefault(shape[0], name)
