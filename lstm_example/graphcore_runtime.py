"""TensorFlow with Graphcore's API: the SDK's, or the stand-in on stock TensorFlow.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import os
from typing import Any

from keras_recompute.startup_lines import load_tensorflow

from .arguments import Options
from .poplar_report import PoplarReports


def request_reports(options: Options) -> PoplarReports | None:
    """Request the reports of Poplar that ``--report`` needs. Comes before TensorFlow is loaded."""
    if options.target == "xla" or not options.report:
        return None
    return PoplarReports(options.report / "poplar")


def load_runtime(target: str) -> Any:
    """Return TensorFlow, in which Graphcore's API can be imported."""
    if target == "ipu-model":
        flags = os.environ.get("TF_POPLAR_FLAGS", "")
        os.environ["TF_POPLAR_FLAGS"] = f"{flags} --use_ipu_model".strip()
    tf = load_tensorflow(list_devices=target == "xla")
    if target == "xla":
        from keras_recompute.ipu import install

        install()
    return tf
