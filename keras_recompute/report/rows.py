"""A program's memory as plain rows, from which text, figures and pages are made."""

from __future__ import annotations

from dataclasses import dataclass

from ..liveness import Buffer, Program
from ..op_names import FORWARD
from ..sizes import format_bytes

_TOTALS = {
    "other_memory_bytes": "on the chip, or in the host's memory",
    "branches_taken": "branches taken",
}
_GAP_STEPS = 8  # what a loop does for itself around the program of its section


@dataclass(frozen=True)
class MemoryRow:
    """One of several figures of the same memory; None if unknown."""

    name: str
    bytes: int | None
    over_compiled_bytes: int | None


@dataclass(frozen=True)
class Span:
    """Consecutive steps, ``first`` to ``last`` inclusive, of one name."""

    name: str
    first: int
    last: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


def memory_rows(
    *,
    predicted: int | None = None,
    compiled: int | None = None,
    measured: int | None = None,
    on_device: int | None = None,
) -> list[MemoryRow]:
    """Return the peak in bytes as predicted by the plan, as compiled, and as measured.

    Each row has its difference to the compiled figure. The peak of a GPU's allocator has a row if
    it is given.

    Examples:
        >>> rows = kr.report.memory_rows(predicted=110, compiled=100, measured=90)
        >>> [row.over_compiled_bytes for row in rows]
        [10, 0, -10]
    """
    figures = {
        "predicted by the plan": predicted,
        "compiled": compiled,
        "measured in the process": measured,
    }
    if on_device is not None:
        figures["measured on the device"] = on_device
    return [
        MemoryRow(name, value, None if value is None or compiled is None else value - compiled)
        for name, value in figures.items()
    ]


def summary_rows(program: Program) -> list[tuple[str, str]]:
    """Return (name, text) for the figures of ``program``; an unknown figure has no row.

    Examples:
        >>> spec = tf.TensorSpec((64, 64))
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, spec, input_feed=["x"])
        >>> dict(kr.report.summary_rows(program))["input feed, counted apart"]
        '16.0 KiB'
    """
    rows = [
        ("peak", format_bytes(program.peak_bytes)),
        ("always-live", format_bytes(program.always_live_bytes)),
        ("not-always-live at the peak", format_bytes(program.not_always_live_peak_bytes)),
        ("input feed, counted apart", format_bytes(program.input_feed_bytes)),
    ]
    if program.allocated_temporary_bytes is not None:
        reserved = format_bytes(program.allocated_temporary_bytes)
        gaps = format_bytes(program.fragmentation_bytes or 0)
        rows.append(("reserved by the allocator", f"{reserved} ({gaps} of it fragmentation)"))
    if program.measured_bytes is not None:
        rows.append(
            (
                "measured while it ran",
                f"{format_bytes(program.measured_bytes)} by {program.measured_by}",
            )
        )
    if program.capacity_bytes is not None:
        rows.append(("capacity", f"{format_bytes(program.capacity_bytes)} ({_uses(program)})"))
    for total, name in _TOTALS.items():
        if program.compiler_totals.get(total):
            value = program.compiler_totals[total]
            rows.append((name, format_bytes(value) if total.endswith("_bytes") else f"{value:,}"))
    rows.append(("program steps", f"{program.program_steps:,}"))
    if program.program_instructions is not None:
        rows.append(("program instructions", f"{program.program_instructions:,}"))
    if program.compile_seconds is not None:
        rows.append(("compiled in", f"{program.compile_seconds:.1f} s"))
    # The name without a version is the default of records, and says nothing.
    if program.compiled_by != "xla":
        rows.append(("compiled by", program.compiled_by))
    return rows


def _uses(program: Program) -> str:
    """Return the shares of the capacity that the peak and a whole run take, as text."""
    capacity = program.capacity_bytes
    shares = {"the peak is": program.peak_bytes, "a run needs": program.needed_bytes}
    # A capacity of 0 is exceeded by anything.
    said = []
    for what, bytes_ in shares.items():
        if bytes_ is not None:
            share = bytes_ / capacity if capacity else float("inf")
            text = "below 1%" if 0 < share < 0.01 else f"{share:.0%}"
            said.append(f"{what} {text}")
    return ", ".join(said) + " of it"


def category_rows(program: Program) -> list[tuple[str, int]]:
    """Return (category, bytes) alive at the peak, largest first; they add up to the peak.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> sum(count for _, count in kr.report.category_rows(program)) == program.peak_bytes
        True
    """
    sums: dict[str, int] = {}
    for buffer in program.live_at(program.peak_step):
        sums[buffer.category] = sums.get(buffer.category, 0) + buffer.size_bytes
    return sorted(sums.items(), key=lambda row: (-row[1], row[0]))


def describe(buffer: Buffer) -> str:
    """Return a buffer's layer and operation in a few words, or its name."""
    operation = buffer.op_name.rsplit("/", 1)[-1] if buffer.op_name else buffer.name
    return (
        f"{buffer.layer}: {operation}"
        if buffer.layer and buffer.layer not in buffer.name
        else operation
    )


def printable(text: str) -> str:
    """Return ``text`` with invisible characters escaped, since names come from foreign files."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def phase_spans(program: Program, *, shortest: int = 1) -> list[Span]:
    """Return the spans of steps of one phase; a step of unknown phase extends the span before it.

    A span of fewer than ``shortest`` steps between two of one phase is merged with them: compilers
    move single instructions, and a figure would show them as stripes.

    Examples:
        >>> phases = "forward", "forward", "backward"
        >>> steps = tuple(kr.liveness.Step("add", 8, phase=phase) for phase in phases)
        >>> spans = kr.report.phase_spans(kr.liveness.Program("by hand", "nobody", steps, ()))
        >>> [(span.name, span.first, span.last) for span in spans]
        [('forward', 0, 1), ('backward', 2, 2)]
    """
    found: list[Span] = []
    for number, step in enumerate(program.steps):
        if found and step.phase in (None, found[-1].name):
            found[-1] = Span(found[-1].name, found[-1].first, number)
        elif step.phase:
            found.append(Span(step.phase, number, number))
    # Shortest first: merging them may make longer ones next to each other equal.
    for length in range(1, shortest):
        number = 1
        while number < len(found) - 1:
            before, here, after = found[number - 1 : number + 2]
            if here.steps == length and before.name == after.name:
                found[number - 1 : number + 2] = [Span(before.name, before.first, after.last)]
            else:
                number += 1
    return found


def section_spans(program: Program) -> list[Span]:
    """Return the spans of steps of one section in one direction, forward or backward.

    Other steps are in no span, but a few of them between two parts of a section belong to it.

    Examples:
        >>> sections = "first", "first", "second"
        >>> steps = tuple(kr.liveness.Step("add", 8, section=section) for section in sections)
        >>> spans = kr.report.section_spans(kr.liveness.Program("by hand", "nobody", steps, ()))
        >>> [(span.name, span.first, span.last) for span in spans]
        [('first', 0, 1), ('second', 2, 2)]
    """
    found: list[Span] = []
    before = None
    for number, step in enumerate(program.steps):
        if not step.section:
            continue
        key = step.section, step.phase in (None, FORWARD)
        if key == before and number - found[-1].last <= _GAP_STEPS:
            found[-1] = Span(step.section, found[-1].first, number)
        else:
            found.append(Span(step.section, number, number))
        before = key
    return found
