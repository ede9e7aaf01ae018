"""Write which versions the tests passed on: docs/versions.md. ``.ci/run`` does it.

    python3 benchmarks/versions.py ENVIRONMENT RESULTS...    what pytest wrote by --junitxml
    python3 benchmarks/versions.py --page                    the page alone

It is run by the Python of the environment, whose packages it names. Needs no package itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from readme_table import replace_table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
# Names of environments, and the packages that may be the backend there. .ci/run has all but the
# newest, which need a Python of their own.
ENVIRONMENTS = {
    "tensorflow": ("TensorFlow", ("tensorflow-cpu", "tensorflow")),
    "oldest": ("TensorFlow", ("tensorflow-cpu", "tensorflow")),
    "jax": ("JAX", ("jax",)),
    "torch": ("PyTorch", ("torch",)),
    "jax-newest": ("JAX", ("jax",)),
    "torch-newest": ("PyTorch", ("torch",)),
}


def installed(*names: str) -> str:
    """Return the version of the first package that is installed."""
    for name in names:
        try:
            return version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    raise SystemExit(f"none of {', '.join(names)} is installed")


def record(environment: str, results: list[Path]) -> dict[str, Any]:
    """Return versions and numbers of tests; raise SystemExit if a test failed."""
    suites = [suite for path in results for suite in ElementTree.parse(path).iter("testsuite")]

    def count(kind: str) -> int:
        return sum(int(suite.get(kind, 0)) for suite in suites)

    if not suites or count("failures") or count("errors"):
        raise SystemExit(f"{environment}: tests failed, or there were none")
    return {
        "backend": installed(*ENVIRONMENTS[environment][1]),
        "keras": installed("keras"),
        "numpy": installed("numpy"),
        "python": platform.python_version(),
        "passed": count("tests") - count("skipped"),
        "skipped": count("skipped"),
        "day": max(suite.get("timestamp", "") for suite in suites)[:10],
    }


def table(found: dict[str, Any]) -> str:
    """Return the Markdown table, in the order of the environments."""
    lines = ["| backend | Keras | NumPy | Python | passed | skipped | day |", "|---|" + "---|" * 6]
    for environment, (title, _) in ENVIRONMENTS.items():
        row = found.get(environment)
        if row is None:
            continue
        versions = f"{title} {row['backend']} | {row['keras']} | {row['numpy']} | {row['python']}"
        lines.append(f"| {versions} | {row['passed']:,} | {row['skipped']} | {row['day']} |")
    return "\n".join(lines)


def main() -> None:
    """Add what was tried to the results, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", nargs="?", choices=ENVIRONMENTS)
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--page", action="store_true", help="write the page alone")
    given = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not given.page:
        found[given.environment] = record(given.environment, given.results)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    replace_table(PAGE, "versions", table(found))


if __name__ == "__main__":
    main()
