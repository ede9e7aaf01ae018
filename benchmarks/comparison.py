"""What a comparison found, and how it is shown: a table, a plot, and a check that all peers did the same work."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peers import PEERS
from workloads import WORKLOADS

from keras_recompute.sizes import format_bytes

AGREEMENT = 1e-4  # relative, of loss and gradient norm of the first step: float32 over a hundred thousand additions
COLUMNS = "peer | seconds per step | of the machine's matrix rate | compiled temporaries | measured in the process"


@dataclass(frozen=True)
class Comparison:
    """The figures of all peers on one workload; a row is what ``one_peer.py`` printed, over all rounds."""

    workload: str
    flops_per_second: list[float]  # of large matrix products, once a round
    rows: list[dict]
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Comparison:
        return cls(**json.loads(path.read_text()))

    def fraction_of_rate(self, row: dict) -> float:
        """Return how near a step comes to doing its matrix products, and nothing else, at the machine's best rate."""
        flops = WORKLOADS[self.workload].matrix_flops(row["checkpoints"])
        return flops / row["step_seconds"] / max(self.flops_per_second)


def table(comparison: Comparison) -> str:
    """Return the figures as Markdown, one table over all numbers of checkpoints."""
    lines = [f"| checkpoints | {COLUMNS} |", "|---" * 6 + "|"]
    for row in comparison.rows:
        spread = row["step_seconds_of_rounds"]
        title = PEERS[row["peer"]].title if row["checkpoints"] else PEERS[row["peer"]].title.split(".checkpoint")[0]
        cells = [
            str(row["checkpoints"]),
            title.replace("torch.utils", "torch") if row["checkpoints"] == 0 else title,
            f"{row['step_seconds']:.2f} ({min(spread):.2f} to {max(spread):.2f})",
            f"{comparison.fraction_of_rate(row):.0%}",
            *("" if row[key] is None else format_bytes(int(row[key])) for key in ("temporary_bytes", "measured_bytes")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def disagreements(comparison: Comparison) -> list[str]:
    """Return a line for every peer whose first loss or gradient norm differs from those of the first peer."""
    lines = []
    for row in comparison.rows[1:]:
        for key in ("loss", "gradient_norm"):
            first = comparison.rows[0][key]
            if not abs(row[key] - first) <= AGREEMENT * abs(first):
                lines.append(f"{row['peer']}, {row['checkpoints']} checkpoints: {key} is {row[key]}, others have {first}")
    return lines


def plot(comparison: Comparison, path: Path) -> None:
    """Draw time against measured memory, one line per peer and a point per number of checkpoints."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    peers = dict.fromkeys(row["peer"] for row in comparison.rows)
    for peer, marker in zip(peers, "osv^D*XP<>"):
        points = [row for row in comparison.rows if row["peer"] == peer and row["measured_bytes"]]
        seconds, memory = [row["step_seconds"] for row in points], [row["measured_bytes"] / 2**20 for row in points]
        width, order = (2.5, 3) if peer == "ours" else (1, 2)
        axes.plot(memory, seconds, marker=marker, linewidth=width, zorder=order, label=PEERS[peer].title)
        for row, x, y in zip(points, memory, seconds):
            axes.annotate(str(row["checkpoints"]), (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="memory of the process over idle, MiB", ylabel="seconds per step")
    for axis, form in ((axes.xaxis, "{x:.0f}"), (axes.yaxis, "{x:.2g}")):
        axis.set_major_formatter(StrMethodFormatter(form))
        axis.set_minor_formatter(StrMethodFormatter(form))
    axes.set_title(f"{comparison.workload}: time and memory of a training step (numbers: checkpoints)")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def write_readme(results: Path, root: Path) -> None:
    """Write the tables of ``results`` into benchmarks/README.md, the first one also into the project's, and the plots."""
    found = {path.stem.removeprefix("compare-"): Comparison.read(path) for path in results.glob("compare-*.json")}
    tables = []
    for name in (name for name in WORKLOADS if name in found):
        plot(found[name], root / "static" / f"compare-{name}.png")
        rate = max(found[name].flops_per_second) / 1e9
        tables.append(f"### {name}\n\nMatrix products at {rate:.0f} GFLOP/s.\n\n{table(found[name])}")
    _replace(root / "benchmarks" / "README.md", "compare", "\n\n".join(tables))
    if "lstm" in found:
        _replace(root / "README.md", "compare", table(found["lstm"]))


def _replace(path: Path, name: str, text: str) -> None:
    before, begin, rest = path.read_text().partition(f"<!-- table:{name} -->\n")
    _, end, after = rest.partition(f"<!-- /table:{name} -->")
    if not (begin and end):
        raise SystemExit(f"{path}: it has no place for the table, between <!-- table:{name} --> and <!-- /table:{name} -->")
    path.write_text(f"{before}{begin}{text}\n{end}{after}")
