"""Run the command line: ``python3 -m keras_recompute.liveness``, which ``keras-recompute`` has too.

Its commands print and draw, which is the report's business, and a report stands on the records
here, not the other way round. So this door hands over to it; nothing that imports the records loads
a report.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ..report.commands import main

    sys.exit(main(sys.argv[1:]))
