"""Sweep the number of checkpoints of the example; make the figures and a table of the docs.

    python3 benchmarks/checkpoints.py            run all, write the results, print the table
    python3 benchmarks/checkpoints.py --figures  also write the figures and docs/benchmarks.md

Each run is a process of its own, so that measured memory starts from nothing. Rounds are
interleaved, and the seconds per step are medians over them: on a busy machine only the ratios
within one sweep mean anything.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

from keras_recompute.liveness import Program  # noqa: E402
from keras_recompute.report import comparison_figure, liveness_figure  # noqa: E402
from keras_recompute.sizes import format_bytes  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "checkpoints.json"
RUNS = [*((k, True) for k in (0, 1, 3, 7, 15, 31)), (0, False), (7, False)]


def run(folder, checkpoints, recompute):
    """Run the example once at the published sizes; return its figures and its program."""
    name = f"{checkpoints}-{recompute}"
    command = [
        sys.executable,
        "recompute_lstm.py",
        "--data",
        "constant",
        "--epochs",
        "4",
        "--quiet",
        "--force",
    ]
    command += [
        "--checkpoints",
        str(checkpoints),
        "--json",
        str(folder / f"{name}.json"),
        "--report",
        str(folder / name),
    ]
    subprocess.run(
        command + ([] if recompute else ["--no-recompute"]),
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return json.loads((folder / f"{name}.json").read_text()), Program.read(
        folder / name / "liveness.json"
    )


def table(rows):
    """Return the table of docs/benchmarks.md, in Markdown."""
    lines = [
        (
            "| checkpoints | predicted peak | compiled peak | measured in the process | seconds "
            "per step |"
        ),
        "|---|---|---|---|---|",
    ]
    for row in rows:
        name = (
            str(row["checkpoints"])
            if row["recompute"]
            else f"{row['checkpoints']}, no recomputation"
        )
        peaks = [
            format_bytes(row[key])
            for key in ("predicted_peak_bytes", "peak_bytes", "measured_peak_bytes")
        ]
        lines.append(f"| {name} | {' | '.join(peaks)} | {row['step_seconds']:.2f} |")
    return "\n".join(lines)


def main():
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each configuration (2)")
    parser.add_argument(
        "--figures",
        action="store_true",
        help="write static/*.png and the table of docs/benchmarks.md",
    )
    arguments = parser.parse_args()
    rows, programs, seconds = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for key in RUNS:
                rows[key], programs[key] = run(Path(folder), *key)
                seconds.setdefault(key, []).append(rows[key]["step_seconds"])
                print(
                    f"round {number + 1}: {key[0]} checkpoints, recompute={key[1]}: "
                    f"{seconds[key][-1]:.2f} s",
                    file=sys.stderr,
                )
    for key, row in rows.items():
        row["step_seconds"] = statistics.median(seconds[key])
        row["step_seconds_of_rounds"] = seconds[key]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    print(table(rows.values()))
    if arguments.figures:
        replace_table(ROOT / "docs" / "benchmarks.md", "checkpoints", table(rows.values()))
        static = ROOT / "static"
        static.mkdir(exist_ok=True)
        plain, seven = programs[0, True], programs[7, True]
        liveness_figure(
            plain, static / "LSTM_no_checkpoints.png", title="LSTM, 2048 steps, no checkpoints"
        )
        liveness_figure(
            seven, static / "LSTM_7_checkpoints.png", title="LSTM, 2048 steps, 7 checkpoints"
        )
        pair = [("no checkpoints", plain), ("7 checkpoints", seven)]
        comparison_figure(
            pair,
            static / "LSTM_0_and_7_checkpoints.png",
            title="LSTM, 2048 steps, memory of a training step",
        )


if __name__ == "__main__":
    main()
