"""Comparison of a program's record with the totals that its compiler states.

Each row compares a sum over the record with a figure that was made without it. A difference has an
explanation, or is called unexplained. Nothing is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import RESULT, TEMPORARY, Program, held_per_step

UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Row:
    """One comparison in bytes (one row counts events); ``explanation`` is empty if both agree."""

    name: str
    ours: int
    compilers: int
    explanation: str = ""

    @property
    def difference(self) -> int:
        """Ours less the compiler's."""
        return self.ours - self.compilers


def reconcile(program: Program) -> list[Row]:
    """Return one row per figure that the compiler of ``program`` states.

    Returns:
        Rows with ``name``, ``ours``, ``compilers``, ``difference`` (bytes; one row counts events)
        and ``explanation``.

    Examples:
        >>> program = kr.liveness.profile(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> rows = kr.liveness.reconcile(program)
        >>> [row.name for row in rows if row.explanation == "unexplained"]
        []
    """
    totals = program.compiler_totals
    lasting = held_per_step(program.buffers, (TEMPORARY, RESULT), program.program_steps)
    rows = [
        _row("summed over all steps", sum(lasting), sum(program.timeline.not_always_live_bytes))
    ]
    if "heap_trace_peak_bytes" in totals:
        temporaries = held_per_step(program.buffers, (TEMPORARY,), program.program_steps)
        untraced = totals.get("untraced_temporary_bytes", 0)
        traced_peak = totals["heap_trace_peak_bytes"]
        rows.append(
            _row(
                "peak of the temporaries",
                max(temporaries),
                traced_peak,
                {untraced: "temporaries without a place in a heap trace, shown as held throughout"},
            )
        )
    if "heap_trace_events_misplaced" in totals:
        rows.append(_row("trace events out of order", 0, totals["heap_trace_events_misplaced"]))
    parameters = program.always_live_bytes + program.input_feed_bytes
    if "parameter_shapes_bytes" in totals and "constants_bytes" in totals:
        stated = totals["parameter_shapes_bytes"] + totals["constants_bytes"]
        padding = totals.get("parameter_padding_bytes", 0)
        rows.append(
            _row(
                "parameters and constants",
                parameters,
                stated,
                {padding: "the device pads parameters to its tiles"},
            )
        )
    if program.allocated_temporary_bytes is not None:
        peak, reserved = program.not_always_live_peak_bytes, program.allocated_temporary_bytes
        # Fragmentation explains only a live peak below the reserved bytes.
        fits = {
            min(
                peak - reserved, 0
            ): "fragmentation: gaps, alignment, results not yet written at the peak"
        }
        rows.append(_row("live peak and reserved", peak, reserved, fits))
        if "allocations_bytes" in totals:
            local = -totals.get("thread_local_bytes", 0)
            rows.append(
                _row(
                    "everything allocated",
                    parameters + reserved,
                    totals["allocations_bytes"],
                    {
                        local: "thread-local: scalars of small called computations, in no other "
                        "figure"
                    },
                )
            )
    return rows


def _row(name: str, ours: int, compilers: int, explanations: dict[int, str] | None = None) -> Row:
    """Return the row; ``explanations`` maps expected differences in bytes to their reasons."""
    if ours == compilers:
        return Row(name, ours, compilers)
    return Row(name, ours, compilers, (explanations or {}).get(ours - compilers, UNEXPLAINED))
