"""Run the command line: ``python3 -m keras_recompute.liveness``.

Its commands print and draw, which is the report's business, and a report stands on the records here, not the other way
round. So the command line lives in ``keras_recompute.report.commands``; this file only hands over to it, by name, when
it is run as a program. Nothing that imports the records loads a report.
"""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.exit(import_module("keras_recompute.report.commands").main(sys.argv[1:]))
