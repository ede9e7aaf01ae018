"""``tensorflow.python.ipu.test_utils``: the reports of a test, and the IPUs it needs."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from .test_decorators import (
    add_hw_ci_connection_options,
    get_ci_num_ipus,
    has_ci_ipus,
    skip_if_not_enough_ipus,
    skip_on_hw,
    test_may_use_ipus_or_model,
    test_uses_ipus,
)

__all__ = [
    "ReportHelper",
    "add_hw_ci_connection_options",
    "get_ci_num_ipus",
    "has_ci_ipus",
    "skip_if_not_enough_ipus",
    "skip_on_hw",
    "test_may_use_ipus_or_model",
    "test_uses_ipus",
]


class ReportHelper:
    """A temporary folder for reports, deleted with this object."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tf_"))
        self._options_set = False
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    def set_autoreport_options(
        self,
        cfg: Any,
        output_graph_profile: bool = True,
        output_execution_profile: bool = False,
        max_execution_reports: int = 1000,
    ) -> None:
        """Make programs compiled under ``cfg``, an IPUConfig, report into this folder."""
        self._options_set = True
        cfg.compilation_poplar_options = {
            **cfg.compilation_poplar_options,
            "autoReport.directory": str(self._directory),
            "autoReport.outputGraphProfile": str(output_graph_profile).lower(),
            "autoReport.outputExecutionProfile": str(output_execution_profile).lower(),
            "autoReport.executionProfileProgramRunCount": str(max_execution_reports),
        }

    def find_reports(self) -> list[str]:
        """Return the paths of all reports, oldest first.

        Raises:
            RuntimeError: If the folder was deleted before any options were set.
            OSError: If the folder was deleted, or a report's folder does not have exactly one
                report.
        """
        if not self._directory.exists():
            if not self._options_set:
                raise RuntimeError(
                    "the folder of reports is not known: call set_autoreport_options(cfg) first"
                )
            raise OSError(f"the folder of reports {str(self._directory)!r} no longer exists")
        found = []
        for folder in self._directory.glob("tf_report_*/"):
            files = list(folder.glob("*.pop"))
            if len(files) != 1:
                raise OSError(
                    f"{str(folder)!r} has {len(files)} reports instead of one: "
                    f"{[f.name for f in files]}"
                )
            found.append(files[0])
        found.sort(key=lambda file: (file.stat().st_ctime_ns, file.parent.name))
        return list(map(str, found))

    def find_report(self) -> str:
        """Return the path of the only report.

        Raises AssertionError unless there is exactly one.
        """
        found = self.find_reports()
        if len(found) != 1:
            hint = "" if self._options_set else ": set_autoreport_options(cfg) was not called"
            raise AssertionError(f"one report was expected, but there are {len(found)}{hint}")
        return found[0]

    def assert_num_reports(self, n: int) -> None:
        """Raise AssertionError unless there are ``n`` reports."""
        found = len(self.find_reports())
        if found != n:
            raise AssertionError(f"{n} reports were expected, but there are {found}")

    def clear_reports(self) -> None:
        """Delete all reports."""
        shutil.rmtree(self._directory)
        self._directory.mkdir()
