"""What a comparison found, and how it is shown: tables, and a check that all peers did the same
work.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peers import ON_DEVICE, PEERS, title
from plot import plot
from readme_table import replace_table
from workloads import WORKLOADS

from keras_recompute.sizes import format_bytes

# The README's table: workload and number of checkpoints of each row, peers of each column.
SUMMARY_ROWS = {
    ("lstm", 0): "LSTM(256), 2048 steps, batch 16",
    ("lstm", 7): "the same LSTM",
    ("transformer", 0): "transformer, 12 blocks of 256, batch 4",
    ("transformer", 3): "the same transformer",
    ("transformer", 11): "the same transformer",
    ("resnet50", 3): "ResNet-50, 64 x 64, batch 16, ours without jit",
}
SUMMARY_COLUMNS = {
    "PyTorch": ("torch",),
    "JAX": ("jax",),
    "keras.remat": ("remat", "keras"),  # without checkpoints it is plain Keras
    "keras-recompute": ("ours-without-jit", "ours"),  # the former ran networks of convolutions only
}

# Relative, of loss and gradient norm of the first step: float32 over a hundred thousand additions.
AGREEMENT = 1e-4
# Of the gradient norm of a deep network: rounding takes a number near zero to the other side of a
# relu.
NORM_AGREEMENT = 1e-3
COLUMNS = (
    "peer | seconds per step | first step | of the machine's matrix rate | compiled temporaries | "
    "measured in the process"
)


@dataclass(frozen=True)
class Comparison:
    """The figures of all peers on one workload; a row is what ``one_peer.py`` printed, over all
    rounds.
    """

    workload: str
    flops_per_second: list[float]  # of large matrix products, once a round
    rows: list[dict]
    failures: list[str] = field(default_factory=list)
    device: str = "this machine"  # what computed

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Comparison:
        return cls(**json.loads(path.read_text()))

    def fraction_of_rate(self, row: dict) -> float:
        """Return how near a step comes to doing its matrix products, and nothing else, at the
        machine's best rate.

        With checkpoints, each product of the forward pass counts twice, also for a peer that
        replays fewer.
        """
        flops = WORKLOADS[self.workload].matrix_flops(row["checkpoints"])
        return flops / row["step_seconds"] / max(self.flops_per_second)


def table(comparison: Comparison, *, main_only: bool = False) -> str:
    """Return the figures as Markdown, one table over all numbers of checkpoints, and what failed
    below it.
    """
    rows = [row for row in comparison.rows if PEERS[row["peer"]].main or not main_only]
    lines = [f"| checkpoints | {COLUMNS} |", "|---" * 7 + "|"]
    for row in rows:
        name, spread = title(row["peer"], row["checkpoints"]), row["step_seconds_of_rounds"]
        cells = [
            str(row["checkpoints"]),
            f"{name}: {row['plan']}" if row.get("plan") else name,
            _seconds(row["step_seconds"])
            + (f" ({_seconds(min(spread))} to {_seconds(max(spread))})" if len(spread) > 1 else ""),
            f"{row['first_step_seconds']:.1f}",
            f"{comparison.fraction_of_rate(row):.0%}",
            *(
                "" if row[key] is None else format_bytes(int(row[key]))
                for key in ("temporary_bytes", "measured_bytes")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [*lines, *(f"\n{failure}" for failure in comparison.failures if not main_only)]
    )


def summary(found: dict[str, Comparison]) -> str:
    """Return the README's table in Markdown: seconds per step and measured memory."""
    lines = [
        f"| network | checkpoints | {' | '.join(SUMMARY_COLUMNS)} |",
        "|---" * (2 + len(SUMMARY_COLUMNS)) + "|",
    ]
    for (workload, checkpoints), name in SUMMARY_ROWS.items():
        rows = {
            row["peer"]: row for row in found[workload].rows if row["checkpoints"] == checkpoints
        }
        cells = []
        for peers in SUMMARY_COLUMNS.values():
            row = next(rows[peer] for peer in peers if peer in rows)
            cells.append(
                f"{_seconds(row['step_seconds'])} s, {format_bytes(int(row['measured_bytes']))}"
            )
        lines.append(f"| {name} | {checkpoints} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.2 else f"{value:.3f}"  # two digits that count


def disagreements(comparison: Comparison) -> list[str]:
    """Return a line for every peer whose first loss or gradient norm, or whose device, is not that
    of the first peer.
    """
    lines = []
    norm_agreement = NORM_AGREEMENT if WORKLOADS[comparison.workload].network else AGREEMENT
    for row in comparison.rows[1:]:
        for key, agreement in (("loss", AGREEMENT), ("gradient_norm", norm_agreement)):
            first = comparison.rows[0][key]
            if not abs(row[key] - first) <= agreement * abs(first):
                lines.append(
                    f"{row['peer']}, {row['checkpoints']} checkpoints: {key} is {row[key]}, others "
                    f"have {first}"
                )
        on_device = [one["measured_by"] == ON_DEVICE for one in (row, comparison.rows[0])]
        if on_device[0] != on_device[1]:
            where = ["on a GPU" if there else "on a CPU" for there in on_device]
            lines.append(
                f"{row['peer']}, {row['checkpoints']} checkpoints: it ran {where[0]}, others "
                f"{where[1]}"
            )
    return lines


def write_readme(results: Path, root: Path) -> None:
    """Write the plots and the tables of benchmarks/README.md, README.md and docs/benchmarks.md."""
    found = {
        path.stem.removeprefix("compare-"): Comparison.read(path)
        for path in results.glob("compare-*.json")
    }
    tables = []
    for name in (name for name in WORKLOADS if name in found):
        plot(found[name], root / "static" / f"compare-{name}.png")
        rate = max(found[name].flops_per_second) / 1e9
        tables.append(
            f"### {name}\n\nMatrix products at {rate:.0f} GFLOP/s, by "
            f"{found[name].device}.\n\n{table(found[name])}"
        )
    replace_table(root / "benchmarks" / "README.md", "compare", "\n\n".join(tables))
    if "lstm" in found:
        replace_table(
            root / "docs" / "benchmarks.md", "compare", table(found["lstm"], main_only=True)
        )
    if {workload for workload, _ in SUMMARY_ROWS} <= set(found):
        replace_table(root / "README.md", "compare", summary(found))
