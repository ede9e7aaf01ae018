"""Command line ``python3 -m keras_recompute.liveness``, the same as ``keras-recompute``.

Its commands print and draw, which is the report's task. A report builds on the records here, and
not the other way round. So this file calls the report's commands, and nothing else here loads them.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ..report.commands import main

    sys.exit(main(sys.argv[1:]))
