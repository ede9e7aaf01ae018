"""Hold the predicted peaks of the example against compiled ones, over shapes of many kinds.

    python3 benchmarks/predictions.py           compile all, write the results, print a table
    python3 benchmarks/predictions.py --figure  also draw the published sizes in one to three levels

Nothing is trained, and bytes do not depend on how busy the machine is. Aim: every prediction within
10 %.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import recompute_lstm  # noqa: E402
from keras_recompute.sizes import format_bytes  # noqa: E402
from lstm_example.arguments import parse_arguments  # noqa: E402
from lstm_example.memory_check import predicted_bytes  # noqa: E402
from lstm_example.progress import Progress  # noqa: E402
from lstm_example.run_record import RunRecord  # noqa: E402
from lstm_example.sequence_plans import SequencePlan, named_plans, plans_for  # noqa: E402
from lstm_example.training import load_builder  # noqa: E402
from lstm_example.worker_processes import WorkerShare  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "predictions.json"
FIGURE = ROOT / "static" / "LSTM_levels.png"
# cell, data, steps, units, features, batch, checkpoints, levels
GRID = [
    ("lstm", "constant", 2048, 256, 512, 16, 7, 1),
    ("lstm", "constant", 2048, 256, 512, 16, 31, 1),
    ("lstm", "constant", 2048, 256, 512, 16, 31, 2),
    ("lstm", "constant", 2048, 256, 512, 16, 127, 2),
    ("lstm", "text", 2048, 256, 512, 16, 7, 1),
    ("gru", "constant", 2048, 256, 512, 16, 7, 1),
    ("gru", "constant", 2048, 256, 512, 16, 63, 2),
    ("gru", "text", 2048, 256, 512, 16, 63, 2),
    ("lstm", "constant", 65536, 256, 512, 1, 127, 1),
    ("lstm", "text", 65536, 256, 512, 1, 127, 2),
    ("gru", "constant", 65536, 256, 512, 1, 127, 2),
    ("lstm", "constant", 512, 64, 1024, 8, 15, 1),
    ("lstm", "constant", 512, 512, 32, 4, 15, 2),
    ("lstm", "text", 720, 96, 48, 3, 11, 1),
    ("lstm", "constant", 1000, 128, 128, 2, 24, 2),
    ("gru", "constant", 512, 64, 1024, 8, 15, 2),
    ("gru", "constant", 512, 512, 32, 4, 15, 1),
    ("gru", "text", 720, 96, 48, 3, 35, 2),
    ("gru", "constant", 1000, 128, 128, 2, 9, 1),
    ("gru", "constant", 96, 32, 16, 32, 5, 2),
]
COMPILED = [
    (k, levels)
    for levels, numbers in ((1, (1, 3, 7, 15, 63)), (2, (15, 63, 255)), (3, (63, 511)))
    for k in numbers
]


def options_of(*arguments):
    """Return the options of the example with these arguments."""
    return parse_arguments(list(map(str, arguments)), recompute_lstm.__doc__)


def compiled(options, plan):
    """Return the bytes of ``plan`` as predicted and as compiled."""
    builder = load_builder(
        RunRecord(WorkerShare(options)),
        recompute_lstm.build_model,
        Progress(quiet=True),
    )
    return predicted_bytes(options, plan), builder.compile(plan).peak_bytes


def figure(path):
    """Draw peaks over the number of checkpoints: predicted for all, compiled for some."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    options = options_of("--data", "constant")
    colours = {1: "#0072B2", 2: "#E69F00", 3: "#009E73"}
    drawn = Figure(figsize=(9, 4.4), dpi=200, facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.add_axes((0.075, 0.13, 0.91, 0.74))
    for levels, colour in colours.items():
        plans = [plan for plan in plans_for(2048, levels=levels) if plan.recompute]
        peaks = [predicted_bytes(options, plan) / 2**20 for plan in plans]
        name = f"{levels} level{'s' if levels > 1 else ''}"
        axes.plot(
            [plan.checkpoints + 1 for plan in plans],
            peaks,
            color=colour,
            label=f"{name}, predicted",
        )
        some = [SequencePlan(k, n) for k, n in COMPILED if n == levels]
        points = [compiled(options, plan)[1] / 2**20 for plan in some]
        axes.plot(
            [plan.checkpoints + 1 for plan in some],
            points,
            "o",
            color=colour,
            label=f"{name}, compiled",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**n for n in range(1, 11)], [str(2**n) for n in range(1, 11)])
    axes.set_ylim(0, 190)
    axes.set_xlabel("sections (checkpoints + 1)", fontsize=9, color="#555555")
    axes.set_title("peak of a training step (MiB)", loc="left", fontsize=10, color="#555555")
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.tick_params(labelsize=9, colors="#555555", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9, ncol=3, loc="upper right")
    drawn.text(
        0.012,
        0.975,
        "LSTM, 2048 steps, in one to three levels",
        fontsize=13,
        fontweight="bold",
        va="top",
    )
    drawn.savefig(path, metadata={"Software": None})


def main():
    """Compile the grid."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--figure", action="store_true", help=f"draw {FIGURE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    names = ("cell", "data", "seq-len", "units", "features", "batch-size", "checkpoints", "levels")
    rows = []
    for values in GRID:
        options = options_of(
            *(part for name, value in zip(names, values) for part in (f"--{name}", value))
        )
        predicted, peak = compiled(options, *named_plans(options))
        rows.append(
            {**dict(zip(names, values)), "predicted_peak_bytes": predicted, "peak_bytes": peak}
        )
        shape = " ".join(f"{value!s:>8}" for value in values)
        print(
            f"{shape}  {format_bytes(predicted):>9} {format_bytes(peak):>9} "
            f"{predicted / peak - 1:+.1%}",
            flush=True,
        )
    worst = max(abs(row["predicted_peak_bytes"] / row["peak_bytes"] - 1) for row in rows)
    print(f"{len(rows)} shapes, the worst prediction off by {worst:.1%}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.figure:
        figure(FIGURE)
    return 0 if worst <= 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
