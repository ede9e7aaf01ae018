"""The page of the zoo, ``docs/zoo.md``, from the rows of its models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zoo_models import BLOCKS

MIB = 2**20
COLUMNS = (
    "model | layers, every | difference, float32 (plain's rounding) / float64 | temporaries with "
    "SGD, MiB: plain / every / leanest plan | with Adam | s per step, jit: plain, every, ratio | "
    "without jit: plain, every, ratio | first step, jit: plain, every, ratio | predicted over "
    "compiled: plain / plan | what holds it, where above the bars"
)
OPTIMIZERS = ("sgd", "adam")
BARS = {"every": 0.6, "plan": 0.45}  # of the plain temporaries


def page(rows: dict[str, Any]) -> str:
    """Return the text of ``docs/zoo.md``."""
    lines = [
        "# The zoo",
        "",
        (
            "Models that nobody here wrote, with random weights, small images and short "
            "sequences, on two x86-64 cores that did"
        ),
        (
            "other work as well, so that seconds are good to a third or so. Made by `python3 "
            "benchmarks/zoo.py`, whose first lines"
        ),
        (
            "say what is measured. Ratios are of the model with checkpoints to the plain Keras "
            "model in the same process."
        ),
        "",
        (
            "Where weights far outweigh activations, as in InceptionResNetV2, the peak stands "
            "where all gradients are there, and"
        ),
        (
            "the plain model's activations lie in buffers that gradients will fill: temporaries "
            "are few, and checkpoints have"
        ),
        "nothing to save.",
        "",
        f"| {COLUMNS} |",
        "|" + "---|" * (COLUMNS.count("|") + 1),
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['error']} |" + " |" * COLUMNS.count("|")
            if "error" in row
            else line(name, row)
        )
    return "\n".join(lines) + "\n"


def lowest(row: dict[str, Any], optimizer: str) -> list[int]:
    """Return the temporaries of a row; of the plain model with the scheduler that needs less."""
    plain, *ours = row["temporaries"][optimizer]
    return [min(plain, row.get("low_memory", {}).get(optimizer, plain)), *ours]


def held_by(row: dict[str, Any]) -> str:
    """Return what holds the temporaries of a row that misses a bar; nothing for one that was
    measured without.
    """
    plain, *ours = lowest(row, "sgd")
    said = []
    for (how, bar), needed, found in zip(BARS.items(), ours, row.get("holders", [])[1:]):
        if needed > bar * plain:
            made = " ".join(
                filter(
                    None, (found["phase"], found["kind"], found["layer"] and f"of {found['layer']}")
                )
            )
            said.append(
                f"{how}: {found['bytes'] / MIB:.1f} MiB, {found['bytes'] / found['of']:.0%}, {made}"
            )
    return "; ".join(said)


def line(name: str, row: dict[str, Any]) -> str:
    """Return the line of a model in the table."""

    def pair(values: list[float]) -> str:
        return f"{values[0]:.2f}, {values[1]:.2f}, **{values[1] / values[0]:.2f}**"

    largest = max(row["jit"]["difference"], row["graph"]["difference"])
    rounding = f" ({row['rounding']:.0e})" if "rounding" in row else ""
    temporaries = [" / ".join(f"{v / MIB:.1f}" for v in lowest(row, each)) for each in OPTIMIZERS]
    predicted = (
        " / ".join(f"{value:.2f}" for value in row["predicted"])
        if "predicted" in row
        else row.get("plan", "")[:80]
    )
    cells: list[Callable[[], str] | str] = [
        name,
        f"{row['layers']}, {BLOCKS.get(name, row['every'])}",
        f"{largest:.0e}{rounding} / {row['float64']:.0e}",
        *temporaries,
        pair(row["jit"]["step"]),
        pair(row["graph"]["step"]),
        pair(row["jit"]["first"]),
        predicted,
        held_by(row),
    ]
    return f"| {' | '.join(map(str, cells))} |"
