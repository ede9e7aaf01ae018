"""Importing the records must stay cheap."""

from __future__ import annotations

import subprocess
import sys


def test_records_and_reports_load_no_tensorflow_and_no_matplotlib():
    code = (
        "import sys, keras_recompute.liveness, keras_recompute.report; "
        "print([m for m in ('tensorflow', 'keras', 'matplotlib', 'google.protobuf') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
