"""Compare ways to train with recomputation: time, memory, and whether they compute the same.

    pip install -r benchmarks/requirements.txt
    python3 benchmarks/compare.py          the workload "lstm", all peers, 3 rounds
    python3 benchmarks/compare.py --workload all --rounds 5
    python3 benchmarks/compare.py --peers ours,torch --checkpoints 7 --json /tmp/figures.json
    python3 benchmarks/compare.py --workload decoder --once keras,recompute-grad,jax
    python3 benchmarks/compare.py --table  both READMEs' tables and plots, from results/*.json

Every peer runs in a process of its own, and rounds are interleaved (A B C A B C), so that a machine
that is busy for a while slows all of them. Times are medians over the rounds; only ratios within
one run mean anything. Peers that are there for completeness run in the first round only, unless
--peers names them, and so do those of --once; what fails is named and not tried again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from comparison import Comparison, disagreements, table, write_readme  # noqa: E402
from peers import PEERS, takes_part  # noqa: E402
from plot import plot  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from workloads import TINY, WORKLOADS, Workload  # noqa: E402

RESULTS = HERE / "results"
SECONDS_LIMIT = 900  # of one process


def main(argv: list[str] | None = None) -> int:
    """Run the comparison; return 0, 1 if a peer failed or computed something else, 2 for a wrong
    command line.
    """
    arguments = _parse(argv)
    errors = Console(stderr=True)
    if arguments.table:
        write_readme(RESULTS, HERE.parent)
        return 0
    names = (
        [name for name in WORKLOADS if name not in TINY]
        if arguments.workload == "all"
        else [arguments.workload]
    )
    for name in arguments.peers:
        if missing := _missing(name):
            errors.print(f"skipped: {name} ({', '.join(missing)} not installed)")
    peers = [name for name in arguments.peers if not _missing(name)]
    failed = False
    for name in names:
        workload = WORKLOADS[name]
        comparison = compare(
            workload, peers, arguments.checkpoints or workload.checkpoints, arguments, errors
        )
        print(table(comparison))
        complaints = disagreements(comparison)
        for complaint in [*complaints, *comparison.failures]:
            errors.print(complaint, markup=False)
        failed |= bool(complaints or comparison.failures)
        path = arguments.json or (None if name in TINY else RESULTS / f"compare-{name}.json")
        if path:
            path.parent.mkdir(exist_ok=True)
            path.write_text(comparison.to_json())
        if arguments.json:
            plot(comparison, path.with_suffix(".png"))
    return int(failed)


def compare(
    workload: Workload,
    peers: list[str],
    checkpoints: tuple[int, ...],
    arguments: argparse.Namespace,
    errors: Console,
) -> Comparison:
    """Run all peers in turns; return what they measured."""
    runs = [
        (name, count)
        for count in checkpoints
        for name in peers
        if takes_part(name, count, kind=workload.kind)
    ]
    again = [
        run
        for run in runs
        if run[0] not in arguments.once and (PEERS[run[0]].main or arguments.peers != tuple(PEERS))
    ]
    rounds = [runs, *[again] * (arguments.rounds - 1)]
    rates: list[dict] = []
    rows: dict[tuple[str, int], list[dict]] = {run: [] for run in runs}
    failures: dict[tuple[str, int], str] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        bar = progress.add_task(workload.name, total=sum(map(len, rounds)))
        for number, turns in enumerate(rounds, start=1):
            rates.append(_child(["--rate"]))
            for name, count in turns:
                label = f"{workload.name}: {name}, {count} checkpoints"
                progress.update(bar, description=label)
                if (name, count) not in failures:
                    try:
                        rows[name, count].append(
                            _child([name, workload.name, str(count), str(arguments.steps)])
                        )
                        said = f"{rows[name, count][-1]['step_seconds']:.3f} s"
                    except RuntimeError as error:
                        failures[name, count] = said = f"failed: {error}"
                    if not errors.is_terminal:
                        errors.print(
                            f"round {number}: {label}: {said}", markup=False, highlight=False
                        )
                progress.advance(bar)
    return Comparison(
        workload=workload.name,
        flops_per_second=[rate["flops_per_second"] for rate in rates],
        rows=[_median(some) for some in rows.values() if some],
        failures=[f"{name}, {count} checkpoints {why}" for (name, count), why in failures.items()],
        device=rates[0]["device"],
    )


def _median(rows: list[dict]) -> dict:
    """Return the figures of one peer over its rounds: medians, with those of each round beside
    them.
    """
    merged = dict(rows[0])
    for key in ("step_seconds", "first_step_seconds", "measured_bytes"):
        values = [row[key] for row in rows if row[key] is not None]
        merged[f"{key}_of_rounds"] = values
        merged[key] = statistics.median(values) if values else None
    return merged


def _child(command: list[str]) -> dict:
    """Run ``one_peer.py``; return what it printed. Raises RuntimeError where it failed."""
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "one_peer.py"), *command],
            capture_output=True,
            text=True,
            timeout=SECONDS_LIMIT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it took more than {SECONDS_LIMIT} seconds") from None
    if done.returncode < 0:
        raise RuntimeError(
            f"it was ended by signal {-done.returncode}; 9 comes where memory runs out"
        )
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        )
    return json.loads(done.stdout.splitlines()[-1])


def _missing(peer: str) -> list[str]:
    return [
        package for package in PEERS[peer].packages if importlib.util.find_spec(package) is None
    ]


def _parse(argv: list[str] | None) -> argparse.Namespace:
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", choices=(*WORKLOADS, "all"), default="lstm", help="what to train (lstm)"
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default=tuple(PEERS),
        metavar="A,B",
        help=f"of {', '.join(PEERS)} (all)",
    )
    parser.add_argument(
        "--once",
        type=_peers,
        default=(),
        metavar="A,B",
        help="peers that run in the first round only (none)",
    )
    parser.add_argument(
        "--checkpoints",
        type=_counts,
        metavar="N,M",
        help="numbers of checkpoints (those of the workload)",
    )
    parser.add_argument("--rounds", type=_positive, default=3, help="processes of each peer (3)")
    parser.add_argument(
        "--steps", type=_positive, default=3, help="timed steps in each process (3)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where figures and a plot go (results/compare-WORKLOAD.json)",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="write the tables and plots from results/*.json, run nothing",
    )
    arguments = parser.parse_args(argv)
    if arguments.workload == "all" and arguments.json:
        parser.error("--json takes the figures of one workload, and --workload all has several")
    for name in [arguments.workload] if arguments.workload != "all" else []:
        for count in arguments.checkpoints or ():
            try:
                WORKLOADS[name].sections(count)
            except ValueError as error:
                parser.error(f"--checkpoints {count}: {error}")
    return arguments


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is no peer: they are {', '.join(PEERS)}")
    return names


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None
    if min(counts) < 0:
        raise argparse.ArgumentTypeError(f"{min(counts)} is below 0")
    return counts


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
