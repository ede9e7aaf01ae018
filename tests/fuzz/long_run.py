"""A long search that goes on after a failure: each sort of failure is made small and reported once.

    python3 -m tests.fuzz.long_run --examples 20000 --json failures.json

Examples run in processes of 200, one after the other: what compiled programs leave in memory goes
with its process, and a crash ends one process only.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHUNK = 200
JIT_EVERY = 8  # compiling takes ten times as long


def main(argv: list[str] | None = None) -> int:
    """Search, print each new sort of failure, and return how many there were, 100 at most."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument(
        "--seed", type=int, default=0, help="the first of the seeds, one for each process (0)"
    )
    parser.add_argument("--json", type=Path, help="where the failures are written")
    parser.add_argument("--modes", help="such as eager,graph; by default all, jit seldom")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {}
    done, start, number = 0, time.time(), options.seed
    while done < options.examples:
        modes = options.modes or ("jit" if number % JIT_EVERY == JIT_EVERY - 1 else "eager,graph")
        chunk = min(CHUNK // 4 if modes == "jit" else CHUNK, options.examples - done)
        result = _in_a_process(
            {"seed": number, "examples": chunk, "modes": modes.split(","), "known": list(found)}
        )
        for failure in result["failures"]:
            found[failure["kind"]] = {**failure, "seed": number}
            print(
                f"\n{failure['kind']} (seed "
                f"{number})\n{failure['detail']}\n{failure['program']}\n{failure['case']}\n",
                flush=True,
            )
        done, number = done + chunk, number + 1
        rate = done / (time.time() - start)
        print(
            f"{done} examples, {rate:.1f} per second, {result['resident_mib']} MiB, {len(found)} "
            "failures",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(list(found.values()), indent=1))
    return min(len(found), 100)


def _in_a_process(task: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        task = {**task, "last": str(Path(folder, "last")), "result": str(Path(folder, "result"))}
        program = (
            "import json, sys; from tests.fuzz.long_run import work; work(json.loads(sys.argv[1]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(task)],
            check=False,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode == 0:
            return json.loads(Path(task["result"]).read_text())
        last = Path(task["last"])
        case = last.read_text() if last.exists() else "none was begun"
        kind = f"the process ended with {done.returncode}"
        return {
            "failures": [
                {"kind": kind, "detail": done.stderr[-2000:], "program": "", "case": case}
            ],
            "resident_mib": 0,
        }


def work(task: dict[str, Any]) -> None:
    """Search in this process, and write down what was found."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    import tensorflow as tf
    from hypothesis import HealthCheck, Phase, settings

    from .cases import Case
    from .compare import Disagreement, check
    from .search import Hunt

    logging.disable(logging.ERROR)
    last = Path(task["last"])

    def noted(case: Case) -> None:
        last.write_text(repr(case))
        check(case)

    failures, known, left, seed = [], set(task["known"]), task["examples"], task["seed"] * 1000
    # As users have it in one half of all processes; the other half takes less time.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": task["seed"] % 2 == 0})
    while left > 0:
        hunt = Hunt(known, check=noted)
        how = settings(
            max_examples=left,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        try:
            hunt.run(tuple(task["modes"]), how, start=seed)
        except Disagreement as found:
            known.add(found.kind)
            failure = {
                "kind": found.kind,
                "detail": found.detail,
                "program": str(found.case),
                "case": repr(found.case),
            }
            failures.append(failure)
        left, seed = left - max(1, hunt.checked), seed + 1
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    Path(task["result"]).write_text(json.dumps({"failures": failures, "resident_mib": resident}))


if __name__ == "__main__":
    sys.exit(main())
