"""The table beside the published images is the one that was measured, and its ratios are what the
document says.
"""

import json
import re
from pathlib import Path

from published_memory import LAST, RESULTS, WHOLE, table

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_the_measured_one():
    shown = re.search(
        r"<!-- table:grouped -->\n(.*?)\n<!-- /table",
        (ROOT / "docs" / "ipu.md").read_text(),
        re.DOTALL,
    )
    assert shown
    assert shown.group(1) == table(json.loads(RESULTS.read_text()))


def test_the_published_network_saves_at_least_what_the_published_images_show():
    rows = json.loads(RESULTS.read_text())
    ratio = {
        name: seven["peak_bytes"] / plain["peak_bytes"] for name, (plain, seven) in rows.items()
    }
    assert ratio[LAST] <= 634 / 1109 < ratio[WHOLE] < 0.615
    for plain, seven in rows.values():
        assert abs(plain["always_live_bytes"] - seven["always_live_bytes"]) < 10_000
