"""Poplar's report options, from the environment and the configuration.

Source: Graphcore, PopVision.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configuration import config

VARIABLE = "POPLAR_ENGINE_OPTIONS"
_RUNS_REPORTED = "2"  # Poplar's default


@dataclass(frozen=True)
class AutoReport:
    """Which reports are requested, their folder, and whether a program must fit the device."""

    graph: bool = False
    execution: bool = False
    everything: bool = False
    directory: Path = Path()
    max_runs: int = 0
    must_fit: bool = False

    @property
    def asks(self) -> bool:
        """Whether compiling a program has to report or check anything."""
        return self.graph or self.execution or self.must_fit

    @classmethod
    def in_force(cls) -> AutoReport:
        """Return the options of the environment and of the configuration in force.

        The environment takes precedence. Raises ValueError for options that cannot be read.
        """
        options = {**config.current().compilation_poplar_options, **_environment()}
        everything = _switch(options, "autoReport.all", False)
        graph = _switch(options, "autoReport.outputGraphProfile", everything)
        runs = options.get("autoReport.executionProfileProgramRunCount", _RUNS_REPORTED)
        if not isinstance(runs, str) or not runs.isdigit():
            raise ValueError(
                f"autoReport.executionProfileProgramRunCount is {runs!r}: give a whole number as "
                "a string"
            )
        return cls(
            graph=graph,
            execution=_switch(options, "autoReport.outputExecutionProfile", everything),
            everything=everything,
            directory=Path(options.get("autoReport.directory", ".")),
            max_runs=int(runs),
            # An IPU always refuses a program that does not fit. Here only reports and this option
            # have a device's memory checked.
            must_fit=not _switch(options, "debug.allowOutOfMemory", not graph),
        )


def _environment() -> dict[str, Any]:
    """Return the options in the environment variable."""
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{VARIABLE}={text!r:.200} is not JSON: {error}") from error
    if not isinstance(options, dict) or not all(
        isinstance(value, str) for value in options.values()
    ):
        raise ValueError(f"{VARIABLE}={text!r}: give a JSON object with strings as values")
    return options


def _switch(options: dict[str, Any], name: str, otherwise: bool) -> bool:
    """Return option ``name`` as a bool, or ``otherwise`` if it is not set."""
    value = options.get(name)
    if value is None:
        return otherwise
    if value not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}: give 'true' or 'false'")
    return bool(value == "true")
