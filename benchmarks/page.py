"""How long the report page takes to load: 20,000 steps, 50,000 buffers, one report and two, in a
fresh browser each time.

    python3 benchmarks/page.py             5 loads of each, in Chromium
    python3 benchmarks/page.py --loads 9

Milliseconds since the page was asked for, as the page itself counts them: *shown*, when figures,
buffers and steps can be used, and *ready*, when the chart is drawn. A fresh browser has compiled
nothing yet, and most of the time until *ready* is that of reading plotly.js. Loads on a busy
machine say little.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "report")]

from browser import Browser, chromium  # noqa: E402
from large import large_program  # noqa: E402

from keras_recompute.report import write_page  # noqa: E402


def loaded(page):
    """Open ``page`` in a new browser; return its two times in milliseconds."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            browser.open(page)
            return tuple(
                int(browser.run(f"document.documentElement.dataset.{name}"))
                for name in ("shown", "ready")
            )
        finally:
            browser.close()


def main():
    """Write the pages, load them, and print the medians and the largest times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--loads", type=int, default=5, help="loads of each page (5)")
    arguments = parser.parse_args()
    if chromium() is None:
        sys.exit("no Chromium is installed (Debian: apt-get install chromium)")
    programs = [(f"seed {seed}", large_program(seed=seed)) for seed in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 2):
            page = write_page(programs[:count], Path(folder, f"{count}.html"))
            times = [loaded(page) for _ in range(arguments.loads)]
            print(f"{count} report{'s' * (count > 1)}, {page.stat().st_size / 2**20:.1f} MiB:")
            for name, column in zip(("shown", "ready"), zip(*times)):
                print(
                    f"    {name}: median {statistics.median(column):,.0f} ms, at most "
                    f"{max(column):,} ms"
                )


if __name__ == "__main__":
    main()
