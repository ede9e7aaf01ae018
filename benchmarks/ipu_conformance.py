"""Which of Graphcore's public scripts run here: ``python3 benchmarks/ipu_conformance.py --examples
PATH --keras PATH``.

PATH are checkouts of Graphcore's repositories, graphcore/examples and graphcore/keras; none of
their code is in this one. Each script of ``SCRIPTS`` is copied with its folder and run there by
``python3 -m keras_recompute.ipu``, unmodified. The rows go to
``benchmarks/results/ipu_conformance.json``, and the table to docs/ipu.md. A script whose repository
is not given keeps its row, and so does one that ``--only`` leaves out. ``--addons PATH``, a
checkout of graphcore/ipu_tensorflow_addons, runs the tests of Graphcore's layers as well, case by
case (see ``ipu_addon_tests``).

Scripts load public data sets. ``--made-up-data`` gives them random numbers of the same shapes,
fewer of them: Keras takes its cache for the data that it would download. What a script says of
accuracy then means nothing; that it runs does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import ipu_addon_tests as addons  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "ipu_conformance.json"
PAGE = ROOT / "docs" / "ipu.md"
_MARKS = re.compile(
    r"(<!-- conformance: python3 benchmarks/ipu_conformance\.py -->\n)"
    r".*?(<!-- end of conformance -->)",
    re.DOTALL,
)
PASS, REFUSED, FAILED, UNFINISHED, OUT = "pass", "refused", "fails", "not finished", "out of scope"


@dataclass(frozen=True)
class Script:
    """A script of a repository. ``out_of_scope`` says why it is not run."""

    repository: str
    path: str
    arguments: tuple[str, ...] = ()
    out_of_scope: str = ""


@dataclass(frozen=True)
class Row:
    """What became of a script."""

    repository: str
    path: str
    outcome: str
    reason: str = ""


_TUTORIALS = "tutorials/tutorials/tensorflow2"
_FEATURES = "tutorials/feature_examples/tensorflow2"
_PARALLEL = "tutorials/tech_notes_code/model_parallelism/tensorflow2_code"
_ESTIMATORS = "TensorFlow no longer has estimators"
_DOWNLOADS = "it downloads trained weights"
_PROCESSES = "several processes by popdist"
SCRIPTS = (
    *(
        Script("graphcore/examples", f"{_FEATURES}/embeddings/{name}.py")
        for name in ("imdb", "imdb_sequential", "imdb_single_ipu", "imdb_single_ipu_sequential")
    ),
    Script("graphcore/examples", f"{_FEATURES}/inspecting_tensors/mnist.py"),
    *(
        Script(
            "graphcore/examples", f"{_FEATURES}/ipu_estimator/{name}.py", out_of_scope=_ESTIMATORS
        )
        for name in (
            "cifar10_ipu_estimator",
            "cifar10_ipu_estimator_replica",
            "cifar10_ipu_pipeline_estimator",
        )
    ),
    *(
        Script("graphcore/examples", f"{_FEATURES}/popdist/{name}.py", out_of_scope=_PROCESSES)
        for name in ("popdist_inference", "popdist_training")
    ),
    Script("graphcore/examples", f"{_FEATURES}/recomputation_checkpoints/recompute_lstm.py"),
    *(
        Script("graphcore/examples", f"tutorials/simple_applications/tensorflow2/mnist/{name}.py")
        for name in ("mnist", "mnist_code_only")
    ),
    *(
        Script("graphcore/examples", f"{_PARALLEL}/{name}.py")
        for name in (
            "inference_pipelining",
            "inference_pipelining_sequential",
            "inference_pipelining_set_pipeline_stage",
            "training_pipelining",
            "training_pipelining_sequential",
        )
    ),
    Script(
        "graphcore/examples",
        "tutorials/tech_notes_code/recompilation/tensorflow2/TF2_recompilation.py",
    ),
    *(
        Script("graphcore/examples", f"{_TUTORIALS}/infeed_outfeed/completed_code/{name}.py")
        for name in ("mnist_with_feeds", "mnist_without_feeds")
    ),
    *(
        Script("graphcore/examples", f"{_TUTORIALS}/keras/completed_demos/completed_demo_{name}.py")
        for name in ("ipu", "faster", "pipelining", "replicated")
    ),
    Script("graphcore/examples", f"{_TUTORIALS}/keras/completed_example/main.py", ("--use-ipu",)),
    *(
        Script("graphcore/examples", f"{_TUTORIALS}/keras/{name}.py")
        for name in ("demo", "demo_code_only", "demo_starting_point")
    ),
    *(
        Script("graphcore/examples", f"{_TUTORIALS}/tensorboard/{name}.py")
        for name in ("demo", "demo_code_only")
    ),
    *(
        Script(
            "graphcore/keras",
            f"keras/ipu/docs/example{number}.py",
            out_of_scope=_DOWNLOADS if number == 9 else "",
        )
        for number in range(1, 13)
    ),
)

# Takes what lies in Keras's cache for the data that it asks for, as soon as Keras is loaded and not
# before.
_CACHE_IS_RIGHT = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "keras.src.utils.file_utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        plain = spec.loader.exec_module
        def exec_module(module):
            plain(module)
            module.validate_file = lambda *args, **kwargs: True
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
_ROWS, _TEST_ROWS = 16384, 4096


def outcome_of(code: int | None, errors: str) -> tuple[str, str]:
    """Return what became of a script that ended with ``code``, None if it was stopped, and wrote
    ``errors``; and why.
    """
    if code is None:
        return UNFINISHED, ""
    if code == 0:
        return PASS, ""
    lines = [line for line in errors.splitlines() if addons.NAMES_ERROR.match(line)]
    last = lines[-1] if lines else f"exit code {code}"
    name, _, said = last.partition(": ")
    is_refusal = addons.is_refusal(name)
    return (REFUSED if is_refusal else FAILED), addons.short(said if is_refusal else last)


def run(script: Script, checkout: Path, timeout_s: int, data: Path | None) -> Row:
    """Run ``script`` of ``checkout`` in a copy of its folder."""
    if script.out_of_scope:
        return Row(script.repository, script.path, OUT, script.out_of_scope)
    source = checkout / script.path
    if not source.exists():
        return Row(script.repository, script.path, FAILED, "it is not in this checkout")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(source.parent, Path(scratch) / "folder"))
        paths = [str(ROOT), *([str(data)] if data else [])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if data:
            environment["KERAS_HOME"] = str(data)
        command = [sys.executable, "-m", "keras_recompute.ipu", source.name, *script.arguments]
        with (Path(scratch) / "errors").open("w+") as errors:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=timeout_s,
                    check=False,
                )
                code: int | None = done.returncode
            except subprocess.TimeoutExpired:
                code = None
            errors.seek(0)
            outcome, reason = outcome_of(code, errors.read())
    return Row(
        script.repository,
        script.path,
        outcome,
        reason or (f"after {timeout_s} s" if code is None else ""),
    )


def make_up_data(folder: Path) -> None:
    """Write data sets of random numbers into a Keras home ``folder``, and what makes Keras take
    them.
    """
    import numpy as np

    draw, sets = np.random.default_rng(0), folder / "datasets"
    sets.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_CACHE_IS_RIGHT, encoding="utf-8")

    def images(rows: int) -> np.ndarray:
        return draw.integers(0, 256, (rows, 28, 28), dtype="uint8")

    def classes(rows: int) -> np.ndarray:
        return draw.integers(0, 10, rows, dtype="uint8")

    np.savez(
        sets / "mnist.npz",
        x_train=images(_ROWS),
        y_train=classes(_ROWS),
        x_test=images(_TEST_ROWS),
        y_test=classes(_TEST_ROWS),
    )

    def texts(rows: int) -> np.ndarray:
        found = np.empty(rows, dtype=object)
        for row in range(rows):
            found[row] = draw.integers(1, 20000, draw.integers(20, 120)).tolist()
        return found

    labels = {
        name: draw.integers(0, 2, rows)
        for name, rows in (("y_train", _ROWS), ("y_test", _TEST_ROWS))
    }
    np.savez(
        sets / "imdb.npz",
        x_train=texts(_ROWS),
        x_test=texts(_TEST_ROWS),
        **labels,
        allow_pickle=True,
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table of the documentation, with a line of counts before it."""
    counts = {
        outcome: sum(row.outcome == outcome for row in rows)
        for outcome in (PASS, REFUSED, FAILED, UNFINISHED, OUT)
    }
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    lines = [
        f"{len(rows)} scripts: {said}.",
        "",
        "| repository | path | outcome |",
        "|---|---|---|",
    ]
    for row in rows:
        outcome = f"{row.outcome}: {row.reason}" if row.reason else row.outcome
        lines.append(f"| {row.repository} | `{row.path}` | {outcome.replace('|', '/')} |")
    return "\n".join(lines)


def filled(page: str, rows: Sequence[Row]) -> str:
    """Return ``page`` with the table between its marks."""
    return _MARKS.sub(lambda mark: f"{mark[1]}{table(rows)}\n{mark[2]}", page)


def known_rows() -> list[Row]:
    """Return the rows of the last run; none where there was none."""
    return (
        [Row(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]
        if RESULTS.exists()
        else []
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scripts and write rows and table; return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in sorted({script.repository for script in SCRIPTS}):
        parser.add_argument(
            f"--{name.partition('/')[2]}", type=Path, metavar="PATH", help=f"a checkout of {name}"
        )
    parser.add_argument(
        "--addons", type=Path, metavar="PATH", help="a checkout of graphcore/ipu_tensorflow_addons"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="run scripts and tests with TEXT in their path alone",
    )
    parser.add_argument(
        "--timeout", type=int, default=600, metavar="SECONDS", help="for one script (default 600)"
    )
    parser.add_argument(
        "--made-up-data",
        action="store_true",
        help="random numbers for the data sets that scripts load",
    )
    options = parser.parse_args(argv)
    rows = {(row.repository, row.path): row for row in known_rows()}
    with tempfile.TemporaryDirectory() as made:
        data = Path(made) / "keras" if options.made_up_data else None
        if data:
            make_up_data(data)
        for script in SCRIPTS:
            checkout = getattr(options, script.repository.partition("/")[2])
            if checkout is None or options.only not in script.path:
                continue
            begin = time.perf_counter()
            row = run(script, checkout, options.timeout, data)
            print(
                f"{time.perf_counter() - begin:6.0f} s  {row.outcome:13} {row.path}  {row.reason}",
                flush=True,
            )
            rows[row.repository, row.path] = row
            _write([rows[s.repository, s.path] for s in SCRIPTS if (s.repository, s.path) in rows])
    if options.addons:
        _run_addons(options.addons, options.only, options.timeout)
    return 0


def _run_addons(checkout: Path, only: str, timeout_s: int) -> None:
    by_path: dict[str, list[addons.Case]] = {}
    for case in addons.known_cases():
        by_path.setdefault(case.path, []).append(case)
    for path in addons.FILES:
        if only in path:
            begin = time.perf_counter()
            by_path[path] = addons.run(path, checkout, timeout_s)
            passed = sum(case.outcome == addons.PASS for case in by_path[path])
            print(
                f"{time.perf_counter() - begin:6.0f} s  {passed} of {len(by_path[path])} pass  "
                f"{path}",
                flush=True,
            )
            addons.write([case for known in addons.FILES for case in by_path.get(known, [])], PAGE)


def _write(rows: Sequence[Row]) -> None:
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
