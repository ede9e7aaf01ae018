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

    Raises InvalidArgumentError for other names.
    """
    unknown = kwargs.keys() - set(DATA_NAMES[len(args) :])
    if unknown:
        raise InvalidArgumentError(
            f"profile(model, x, y) got {sorted(unknown)}; a batch is {', '.join(DATA_NAMES)}"
        )
    data = [*args, *map(kwargs.get, DATA_NAMES[len(args) :])]
    return tuple(part for part in data if part is not None)
