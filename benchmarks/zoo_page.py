"""The page of the zoo, ``docs/zoo.md``, from the rows of its models."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any

from zoo_models import BLOCKS

MIB = 2**20
COLUMNS = (
    "model | layers, every | difference, float32 (plain's rounding) / float64 | temporaries with "
    "SGD, MiB: plain / every / leanest plan | with Adam | s per step, jit: plain, every, ratio | "
    "without jit: plain, every, ratio | first step, jit, processor s: plain, every, ratio | "
    "predicted over compiled: plain / plan | peak of the plan for 0.75 / 0.5 of plain's | what "
    "holds it, where above the bars"
)
OPTIMIZERS = ("sgd", "adam")
BARS = {"every": 0.6, "plan": 0.45}  # of the plain temporaries
HEAD = """\
# The zoo

Published models with random weights, small images and short sequences, on two x86-64 cores that
did other work as well: seconds are good to a third or so. Made by `python3 benchmarks/zoo.py`,
whose first lines say what is measured. Memory is that of a whole training step. Ratios are of the
model with checkpoints to the plain Keras model in the same process. Memory, differences and seconds
per step are of earlier commits than first steps.

`kr.plan` was asked for the leanest plan, and for three quarters and half of the plain step's peak,
weights included. The table has the peak of the plan over that of the plain step, or the smallest
budget that is not refused.
"""


def page(rows: dict[str, Any]) -> str:
    """Return the text of ``docs/zoo.md``."""
    lines = [HEAD, summary(rows), "", f"| {COLUMNS} |", "|" + "---|" * (COLUMNS.count("|") + 1)]
    # Earlier rows have the memory of gradients alone.
    earlier = [name for name, row in rows.items() if isinstance(row.get("temporaries"), list)]
    for name, row in rows.items():
        if name in earlier:
            continue
        if "error" in row:
            lines.append(f"| {name} | {row['error']} |" + " |" * COLUMNS.count("|"))
        else:
            lines.append(line(name, row))
    if earlier:
        lines += ["", "Not measured as whole steps yet:", f"{', '.join(earlier)}."]
    return "\n".join(lines) + "\n"


def summary(rows: dict[str, Any]) -> str:
    """Return sentences on memory and first steps of all models, beside the plain ones."""
    ratios, first = [], []
    for row in rows.values():
        if "jit" in row:
            plain, ours = row["jit"]["first"]
            first.append(ours / plain)
        if isinstance(row.get("temporaries"), dict):
            for optimizer in OPTIMIZERS:
                plain, *ours = lowest(row, optimizer)
                ratios += [needed / plain for needed in ours]
    median, most = statistics.median(ratios), max(ratios)
    sentences = (
        f"{len(ratios)} steps with checkpoints, with SGD and with Adam, take {median:.2f} of the "
        f"temporaries of the plain step in the median, and {most:.2f} at most. A first step with "
        f"checkpoints and jit takes {statistics.median(first):.2f} of the processor seconds of the "
        f"plain one in the median, and {max(first):.2f} at most."
    )
    return textwrap.fill(sentences, 100)


def lowest(row: dict[str, Any], optimizer: str) -> list[int]:
    """Return the temporaries of a row; of the plain model with the scheduler that needs less."""
    plain, *ours = row["temporaries"][optimizer]
    return [min(plain, row.get("low_memory", {}).get(optimizer, plain)), *ours]


def held_by(row: dict[str, Any]) -> str:
    """Return what holds the temporaries of a row that misses a bar."""
    plain, *ours = lowest(row, "sgd")
    said = []
    for (how, bar), needed, found in zip(BARS.items(), ours, row.get("holders", [])[1:]):
        if needed > bar * plain:
            layer = f"of {found['layer']}" if found["layer"] else ""
            made = " ".join(filter(None, (found["phase"], found["kind"], layer)))
            share = found["bytes"] / found["of"]
            said.append(f"{how}: {found['bytes'] / MIB:.1f} MiB, {share:.0%}, {made}")
    return "; ".join(said)


def budget_cell(found: list[float | None]) -> str:
    """Return the peak of the plan for a budget, or the smallest budget where it is refused."""
    peak, floor = found
    return f"refused below {floor:.2f}" if peak is None else f"{peak:.2f}"


def line(name: str, row: dict[str, Any]) -> str:
    """Return the line of a model in the table."""

    def pair(values: list[float]) -> str:
        return f"{values[0]:.2f}, {values[1]:.2f}, **{values[1] / values[0]:.2f}**"

    largest = max(row["jit"]["difference"], row["graph"]["difference"])
    rounding = f" ({row['rounding']:.0e})" if "rounding" in row else ""
    temporaries = [" / ".join(f"{v / MIB:.1f}" for v in lowest(row, each)) for each in OPTIMIZERS]
    predicted = row.get("plan", "")[:80]
    if "predicted" in row:
        predicted = " / ".join(f"{value:.2f}" for value in row["predicted"])
    cells = [
        name,
        f"{row['layers']}, {BLOCKS.get(name, row['every'])}",
        f"{largest:.0e}{rounding} / {row['float64']:.0e}",
        *temporaries,
        pair(row["jit"]["step"]),
        pair(row["graph"]["step"]),
        pair(row["jit"]["first"]),
        predicted,
        " / ".join(map(budget_cell, row.get("budgets", []))),
        held_by(row),
    ]
    return f"| {' | '.join(map(str, cells))} |"
