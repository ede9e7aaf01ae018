"""How well half an hour teaches text: ``recompute_lstm.py`` and the same network in PyTorch, in
bits per byte.

    python3 benchmarks/text.py              30 minutes each; writes results and a figure
    python3 benchmarks/text.py --minutes 1  printed alone

The text is the source of Python's standard library, without its tests: real text that every machine
has. A tenth, at its end, is held back. LSTM(256) over 2048 steps, an embedding of 512, batch 16,
Adam at 0.003; ours has 7 checkpoints, PyTorch keeps all, which is faster. PyTorch may be in the
environment whose interpreter TORCH_PYTHON names. Minutes are of updates alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from lstm_example.saves import last_save  # noqa: E402

RESULTS, FIGURE = ROOT / "benchmarks" / "results" / "text.json", ROOT / "static" / "text.png"
OPTIONS = (
    "--checkpoints 7 --gradient-accumulation 1 --learning-rate 0.003 --validation 0.1 "
    "--steps-per-epoch 40 --epochs 100000"
)
GENERATE = "--length 400 --temperature 0.6 --generate".split()
PROMPT = "def "


def write_corpus(path: Path) -> None:
    """Write the sources of the standard library, one after the other."""
    library = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    with path.open("wb") as corpus:
        for file in sorted(library.rglob("*.py")):
            if skipped.isdisjoint(file.relative_to(library).parts):
                corpus.write(file.read_bytes())


def ours(text: Path, minutes: float, folder: Path) -> list[dict[str, Any]]:
    """Train by the script until updates took ``minutes``; return a row for each validation."""
    script = [sys.executable, str(ROOT / "recompute_lstm.py")]
    process = subprocess.Popen(
        [*script, *OPTIONS.split(), "--quiet", "--text", str(text), "--save", str(folder)]
    )
    try:
        while process.poll() is None and _state(folder).get("trained_seconds", 0) < 60 * minutes:
            time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
    state = _state(folder)
    return [
        {
            "updates": row["update"],
            "seconds": row["trained_seconds"],
            "learnt": state["losses"][row["update"] - 1] / math.log(2),
            "held_back": row["loss"] / math.log(2),
        }
        for row in state["validation"]
    ]


def of_torch(text: Path, minutes: float) -> list[dict[str, Any]]:
    """Train in PyTorch for as long, and return a row for each validation."""
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    command = [
        python,
        str(ROOT / "benchmarks" / "peers" / "torch_text.py"),
        str(text),
        str(minutes),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def continued(folder: Path) -> str:
    """Return what the network that was saved makes of the prompt."""
    command = [
        sys.executable,
        str(ROOT / "recompute_lstm.py"),
        "--load",
        str(folder),
        *GENERATE,
        PROMPT,
    ]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    ).stdout


def draw(rows: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw bits per byte of the text that was held back over the minutes of training."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, found), colour, line in zip(rows.items(), ("#0072B2", "#D55E00"), ("-", "--")):
        axes.plot(
            [row["seconds"] / 60 for row in found],
            [row["held_back"] for row in found],
            line,
            color=colour,
            label=name,
        )
    axes.set_xlabel("minutes of updates, on the same two cores")
    axes.set_ylabel("bits per byte, text that was held back")
    axes.set_title("LSTM(256) over 2048 steps of Python source")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E4E4")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)


def main(argv: list[str] | None = None) -> int:
    """Train both, print what came out, and keep it where nothing was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="of updates, for each (30)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        text, saves = Path(folder, "corpus.txt"), Path(folder, "saves")
        write_corpus(text)
        size = text.stat().st_size
        rows = {"keras_recompute, 7 checkpoints": ours(text, options.minutes or 30, saves)}
        generated = continued(saves)
        rows["PyTorch, no checkpoints"] = of_torch(text, options.minutes or 30)
    for name, found in rows.items():
        last = found[-1]
        print(
            f"{name}: {last['held_back']:.3f} bits per byte after {last['updates']} updates, "
            f"{last['seconds'] / 60:.1f} minutes"
        )
    print(f"\n{generated}")
    if options.minutes is None:
        RESULTS.write_text(
            json.dumps({"text_bytes": size, "rows": rows, "generated": generated}, indent=1) + "\n"
        )
        draw(rows, FIGURE)
    return 0


def _state(folder: Path) -> dict[str, Any]:
    save = last_save(folder, "")
    return save.state if save else {}


if __name__ == "__main__":
    sys.exit(main())
