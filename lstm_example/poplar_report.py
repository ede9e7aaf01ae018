"""Memory reports of the Poplar SDK: requested before TensorFlow starts, read after training."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.liveness import Program, read_popvision

VARIABLE = "POPLAR_ENGINE_OPTIONS"


class PoplarReports:
    """Reports that Poplar writes while this object is in use."""

    def __init__(self, directory: Path) -> None:
        """Make Poplar write reports to ``directory``, unless the environment says where.

        Must be called before TensorFlow starts, which is when Poplar reads the environment. Raises
        InvalidArgumentError for an environment that Poplar could not read.
        """
        text = os.environ.get(VARIABLE, "").strip() or "{}"
        try:
            options = json.loads(text)
            self.directory = Path(options.setdefault("autoReport.directory", str(directory)))
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise InvalidArgumentError(
                f"{VARIABLE}={text!r:.200} is not a JSON object with strings as values: {error}"
            ) from error
        # The user's own settings take precedence.
        options.setdefault("autoReport.all", "true")
        os.environ[VARIABLE] = json.dumps(options)
        self.there_before = set(self._profiles())

    def read(self) -> Program:
        """Return the record of the reported program with the largest peak, the training program.

        Raises ReportError if Poplar wrote no report, or one that cannot be read.
        """
        # Earlier runs may have left reports in the folder.
        new = [path for path in self._profiles() if path not in self.there_before]
        if not new:
            raise ReportError(
                f"Poplar wrote no report to {str(self.directory)!r}; see whether {VARIABLE} turns "
                "reports off"
            )
        return max((read_popvision(path) for path in new), key=lambda program: program.peak_bytes)

    def _profiles(self) -> list[Path]:
        return sorted(self.directory.glob("tf_report__*/profile.pop"))
