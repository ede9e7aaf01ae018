"""The soak's table is the one that was measured. Nothing is timed here."""

import json
import re
from pathlib import Path

from soak import RESULTS, Watch, table

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_the_measured_one():
    shown = re.search(
        r"<!-- table:soak -->\n(.*?)\n<!-- /table",
        (ROOT / "benchmarks" / "README.md").read_text(),
        re.DOTALL,
    )
    assert shown
    assert shown.group(1) == table(json.loads(RESULTS.read_text()))


def test_what_is_compared_is_the_beginning_and_the_end(monkeypatch):
    held = iter(
        [
            {"resident_bytes": 100, "threads": 2, "files": 3},
            {"resident_bytes": 102, "threads": 2, "files": 4},
        ]
    )
    moments = iter([0.0, 1.0, *range(2, 20)])
    watch = Watch(1, 20)
    monkeypatch.setattr(watch, "_held", lambda: next(held))
    monkeypatch.setattr("soak.time.perf_counter", lambda: next(moments))
    for _ in range(20):
        watch.round()
    row = watch.row()
    assert row == {
        "rounds": 20,
        "resident_bytes": [100, 102],
        "threads": [2, 2],
        "files": [3, 4],
        "seconds": [1.0, 1.0],
    }
