"""The record of a compiled program's memory, as plain data without TensorFlow.

There is one record for every source: ``xla_reader`` makes it from XLA's buffer assignment, and
other readers make the same. Timeline, reconciliation and figures use the record alone.

Bytes are classified by their lifetime:

* *always-live*: parameters that stay with the program (weights, optimiser state, whole inputs) and
  constants;
* *input feed*: the data of one execution, passed in from outside. It is neither always-live nor
  part of the model's peak, and is counted apart;
* *temporary*: held from one program step to another;
* *result*: what the program returns in storage of its own, held from its first use to the end.

The *peak* is always-live plus the largest sum of temporaries and results over the program steps. A
step is one instruction of the compiled schedule. The body of a loop counts once, however often it
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Container, Iterable

from ..atomic_files import read_whole
from ..errors import ReportError
from ..sizes import format_bytes
from . import json_columns

ALWAYS_LIVE, INPUT_FEED, TEMPORARY, RESULT = "always-live", "input-feed", "temporary", "result"
LIFETIMES = (ALWAYS_LIVE, INPUT_FEED, TEMPORARY, RESULT)
# A program of 20,000 steps and 50,000 buffers takes 4 MB. In memory a record takes ten times that.
RECORD_BYTES_AT_MOST = 256 * 2**20


@dataclass(frozen=True)
class Step:
    """One instruction of the schedule, and the bytes that are not always live while it runs."""

    instruction: str
    not_always_live_bytes: int
    op_name: str | None = None
    layer: str | None = None
    phase: str | None = None
    section: str | None = None


@dataclass(frozen=True)
class Buffer:
    """Storage held from ``first_step`` to ``last_step``, both included."""

    name: str
    size_bytes: int
    first_step: int
    last_step: int
    lifetime: str
    category: str
    op_name: str | None = None
    layer: str | None = None
    phase: str | None = None
    section: str | None = None
    source: str | None = None

    def is_live_at(self, step: int) -> bool:
        """Return whether the storage is held while ``step`` runs."""
        return self.first_step <= step <= self.last_step


@dataclass(frozen=True)
class Timeline:
    """Bytes held by a program: a constant floor, and what is added at each program step."""

    always_live_bytes: int
    input_feed_bytes: int
    not_always_live_bytes: tuple[int, ...]

    @property
    def not_always_live_peak_bytes(self) -> int:
        """Largest value over the steps."""
        return max(self.not_always_live_bytes)

    @property
    def peak_step(self) -> int:
        """The first step at which the largest value is reached."""
        return self.not_always_live_bytes.index(self.not_always_live_peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Always-live bytes plus the largest not-always-live value."""
        return self.always_live_bytes + self.not_always_live_peak_bytes

    @property
    def total_bytes(self) -> tuple[int, ...]:
        """Always-live plus not-always-live bytes at each step."""
        return tuple(self.always_live_bytes + bytes_ for bytes_ in self.not_always_live_bytes)


@dataclass(frozen=True)
class Program:
    """A compiled program: its steps, the storage it holds, and the compiler's own totals.

    Unknown figures are None, never zero.

    Attributes:
        name: The compiler's name for it.
        compiled_by: The compiler, with its version if known.
        steps: The instructions of its schedule.
        buffers: All storage, from its first to its last step.
        program_instructions: Number of instructions, also of those without a step.
        allocated_temporary_bytes: What the allocator reserves for temporaries and results. It
            exceeds the live peak by fragmentation.
        capacity_bytes: Memory of the device.
        compile_seconds: How long compilation took.
        measured_bytes: Memory of a run without parameters and data, if it was measured; comparable
            with ``allocated_temporary_bytes``.
        measured_by: How it was measured: by a GPU's allocator, or for the process.
        compiler_totals: Figures that the compiler states itself (see ``reconcile``).

    Raises:
        ReportError: There is no step, or a step or buffer is impossible.

    Examples:
        >>> from keras_recompute.liveness import Buffer, Step
        >>> steps = Step("multiply", not_always_live_bytes=8), Step("add", not_always_live_bytes=12)
        >>> weight = Buffer("w", 16, 0, 1, lifetime="always-live", category="weight")
        >>> program = kr.liveness.Program("by hand", "nobody", steps, (weight,))
        >>> program.peak_bytes, program.peak_step, program.timeline.total_bytes
        (28, 1, (24, 28))
        >>> print(program)
        by hand: peak 28 B at step 2 of 2, 16 B of it always live (compiled by nobody)
    """

    name: str
    compiled_by: str
    steps: tuple[Step, ...] = field(repr=False)
    buffers: tuple[Buffer, ...] = field(repr=False)
    program_instructions: int | None = None
    allocated_temporary_bytes: int | None = None
    capacity_bytes: int | None = None
    compile_seconds: float | None = None
    measured_bytes: int | None = None
    measured_by: str | None = None
    compiler_totals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ReportError for impossible steps and buffers."""
        if not self.steps:
            raise ReportError(f"the program {self.name!r} has no steps, so it has no timeline")
        for step in self.steps:
            if step.not_always_live_bytes < 0:
                raise ReportError(
                    f"step {step.instruction!r} holds {step.not_always_live_bytes} bytes, fewer "
                    "than none"
                )
        for buffer in self.buffers:
            if buffer.size_bytes < 0 or not 0 <= buffer.first_step <= buffer.last_step < len(
                self.steps
            ):
                raise ReportError(
                    f"buffer {buffer.name!r} has {buffer.size_bytes} bytes from step "
                    f"{buffer.first_step} to {buffer.last_step} of a program with "
                    f"{len(self.steps)} steps: sizes and steps must be in order"
                )
            if buffer.lifetime not in LIFETIMES:
                raise ReportError(
                    f"buffer {buffer.name!r} has lifetime {buffer.lifetime!r}, not one of "
                    f"{', '.join(LIFETIMES)}"
                )

    def __str__(self) -> str:
        """Return the peak, its step and its compiler in one line."""
        at = f"at step {self.peak_step + 1:,} of {len(self.steps):,}"
        return (
            f"{self.name}: peak {format_bytes(self.peak_bytes)} {at}, "
            f"{format_bytes(self.always_live_bytes)} of it always live "
            f"(compiled by {self.compiled_by})"
        )

    @property
    def program_steps(self) -> int:
        """Number of program steps; the body of a loop counts once."""
        return len(self.steps)

    @cached_property
    def timeline(self) -> Timeline:
        """Bytes over program steps."""
        always_live = input_feed = 0
        for buffer in self.buffers:
            if buffer.lifetime == ALWAYS_LIVE:
                always_live += buffer.size_bytes
            elif buffer.lifetime == INPUT_FEED:
                input_feed += buffer.size_bytes
        # As the compiler counts them: the buffers may not explain every byte.
        held = tuple(step.not_always_live_bytes for step in self.steps)
        return Timeline(always_live, input_feed, held)

    @property
    def always_live_bytes(self) -> int:
        """Bytes of parameters that stay with the program, and of constants."""
        return self.timeline.always_live_bytes

    @property
    def input_feed_bytes(self) -> int:
        """Bytes of the data of one execution, which no other figure includes."""
        return self.timeline.input_feed_bytes

    @property
    def not_always_live_peak_bytes(self) -> int:
        """Largest sum of temporaries and results over the steps."""
        return self.timeline.not_always_live_peak_bytes

    @property
    def peak_bytes(self) -> int:
        """Always-live bytes plus the not-always-live peak."""
        return self.timeline.peak_bytes

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return self.timeline.peak_step

    @property
    def needed_bytes(self) -> int | None:
        """Bytes that a run needs: always-live, fed data, and the allocator's reserve."""
        if self.allocated_temporary_bytes is None:
            return None
        return self.always_live_bytes + self.input_feed_bytes + self.allocated_temporary_bytes

    @property
    def run_bytes(self) -> int:
        """``needed_bytes``, or the peak and fed data where it is not known what is reserved."""
        if self.needed_bytes is None:
            return self.peak_bytes + self.input_feed_bytes
        return self.needed_bytes

    @property
    def fragmentation_bytes(self) -> int | None:
        """Bytes that the allocator reserves beyond the live peak."""
        if self.allocated_temporary_bytes is None:
            return None
        return self.allocated_temporary_bytes - self.not_always_live_peak_bytes

    def live_at(self, step: int) -> tuple[Buffer, ...]:
        """Return the model's storage held at ``step``, largest first, without the input feed."""
        live = (b for b in self.buffers if b.lifetime != INPUT_FEED and b.is_live_at(step))
        # Ties are broken by step and name, so that equal programs give equal reports.
        return tuple(sorted(live, key=lambda b: (-b.size_bytes, b.first_step, b.name)))

    def top_buffers(self, count: int = 10) -> tuple[Buffer, ...]:
        """Return the ``count`` largest buffers that are alive at the peak, largest first."""
        return self.live_at(self.peak_step)[:count]

    def named_share_at_peak(self) -> float:
        """Return the share, 0 to 1, of peak bytes that have a layer or are a parameter."""
        live = self.live_at(self.peak_step)
        total = named = 0
        for buffer in live:
            total += buffer.size_bytes
            is_parameter = buffer.lifetime == ALWAYS_LIVE and buffer.category != "other"
            if buffer.layer or is_parameter:
                named += buffer.size_bytes
        return named / total if total else 1.0

    def to_json(self) -> str:
        """Return the program as JSON text; ``from_json`` reads it back equal."""
        return json_columns.encode(self)

    @staticmethod
    def from_json(text: str | bytes) -> Program:
        """Read what ``to_json`` wrote. Raises ReportError for anything else."""
        return json_columns.decode(text, program=Program, step=Step, buffer=Buffer)

    @staticmethod
    def read(path: str | Path) -> Program:
        """Read a ``liveness.json``. Raises ReportError if that is not possible."""
        try:
            return Program.from_json(read_whole(path, at_most_bytes=RECORD_BYTES_AT_MOST))
        except OSError as error:
            raise ReportError(
                f"no liveness report could be read from {str(path)!r}: {error.strerror}"
            ) from error


def held_per_step(buffers: Iterable[Buffer], lifetimes: Container[str], steps: int) -> list[int]:
    """Return the bytes held at each of ``steps`` steps by buffers of the given ``lifetimes``."""
    change = [0] * (steps + 1)
    for buffer in buffers:
        if buffer.lifetime in lifetimes:
            change[buffer.first_step] += buffer.size_bytes
            change[buffer.last_step + 1] -= buffer.size_bytes
    return list(accumulate(change))[:steps]
